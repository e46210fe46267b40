"""Deadlines of tests: a slow machine gets more time, what never comes ends a test, and none is set by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import deadlines, packages, wait

pytest_plugins = ["pytester"]
TESTS = Path(__file__).resolve().parents[1]
SLEEPER = [sys.executable, "-c", "import sys, time; time.sleep(1); print(sys.stdin.read() + ' and out')"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is a thousand times slower at the moment at which a deadline has passed."""
    for module in (deadlines, wait):
        monkeypatch.setattr(module, "slowness", lambda: 1000.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is as quick as the deadlines suppose, whatever runs on it."""
    for module in (deadlines, wait):
        monkeypatch.setattr(module, "slowness", lambda: 1.0)


def test_a_slow_machine_gets_more_time(slow: None) -> None:
    done = subprocess.run(SLEEPER, input="in", capture_output=True, text=True, timeout=0.2)
    assert done.stdout == "in and out\n"
    process = subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert process.wait(timeout=0.2) == 0
    begun = time.monotonic()
    assert wait.until(lambda: time.monotonic() > begun + 0.5, 0.1)


def test_what_never_comes_ends_a_test(quick: None) -> None:
    with pytest.raises(AssertionError, match=r"no miracle within 0\.1 s"):
        wait.until(lambda: False, 0.1, what="miracle")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(SLEEPER, stdin=subprocess.DEVNULL, capture_output=True, timeout=0.1)


def test_a_deadline_of_what_is_tested_is_its_own(slow: None) -> None:
    """The product's deadlines are promises: their tests must see them kept."""
    names = {"argv": SLEEPER, "subprocess": subprocess}
    product = compile("subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=0.1)", "/product/run.py", "exec")
    with pytest.raises(subprocess.TimeoutExpired):
        exec(product, names)


def test_the_speed_is_measured_and_bounded() -> None:
    assert 1.0 <= wait.slowness() <= wait.MOST


def test_marks_and_the_option_grow_with_the_load(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent), prepend=os.pathsep)
    pytester.makeconftest("""
        import os
        from tests.support.deadlines import pytest_runtest_protocol
        os.getloadavg, os.cpu_count = lambda: (8.0, 0, 0), lambda: 2
    """)
    pytester.makepyfile("""
        import pytest
        def seconds(request): return request.node.get_closest_marker("timeout").args[0]
        @pytest.mark.timeout(30)
        def test_mark(request): assert seconds(request) == 120
        def test_option(request): assert seconds(request) == 80
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--timeout", "20").assert_outcomes(passed=2)


BY_HAND = re.compile(r"\btime\.sleep\(|\bmonotonic\(\) \+ |\bmonotonic\(\) - \w+ <|\bseconds < (?!scaled\()")
"""A pause, mostly in place of a condition; a deadline, or an upper bound, that no slow machine prolongs."""
LEFT = {
    "cgroup/moments.py": 2,
    "distributed/conftest.py": 4,
    "distributed/sharded_job.py": 2,
    "distributed/test_two_ranks.py": 2,
    "faults/capturer.py": 1,
    "faults/foreign_trainer.py": 1,
    "faults/random_faults.py": 1,
    "faults/test_ends.py": 2,
    "faults/test_s3.py": 2,
    "faults/test_storage_away.py": 2,
    "faults/torch_trainer.py": 2,
    "faults/trainer.py": 4,
    "hostile/acts/deeds.py": 3,
    "hostile/acts/program.py": 1,
    "hostile/fuzz/engine.py": 1,
    "hostile/test_flush_as_root.py": 2,
    "hostile/test_hooks_and_run.py": 1,
    "hostile/test_job_among_strangers.py": 1,
    "hostile/test_lifeline.py": 1,
    "hostile/test_quota_of_others.py": 1,
    "hostile/test_root_as_owner.py": 1,
    "lab_tests/test_checkpoint_bench.py": 1,
    "rehearsal/mallory.py": 1,
    "rehearsal/storage/data_trainer.py": 1,
    "rehearsal/test_abort.py": 3,
    "suite/run.py": 1,
    "support/serving_fuse.py": 1,
    "test_wall_clocks.py": 1,
    "unit/checkpoint/root_errors_job.py": 2,
    "unit/checkpoint/test_flush.py": 1,
    "unit/checkpoint/test_flush_handover.py": 3,
    "unit/checkpoint/test_retention.py": 1,
    "unit/s3/test_client.py": 1,
    "unit/checkpoint/test_two_trainers.py": 1,
    "unit/checkpoint/test_warned.py": 2,
    "unit/data/test_killed.py": 1,
    "unit/data/test_workers.py": 2,
    "unit/job/fake_srun.py": 2,
    "unit/job/goodput/measured_trainer.py": 3,
    "unit/job/hang_trainer.py": 5,
    "unit/job/test_exits.py": 1,
    "unit/job/test_hang_on_slurm.py": 1,
    "unit/job/test_lifeline.py": 1,
    "unit/job/test_shared_decision.py": 1,
    "unit/job/third_party.py": 1,
    "unit/job/toy_trainer.py": 6,
    "unit/job/warned_trainer.py": 2,
    "unit/node/clients/lock_holder.py": 1,
    "rehearsal_tests/s3/test_store.py": 1,
    "rehearsal_tests/standins/test_mountpoint_semantics.py": 1,
    "rehearsal_tests/test_agent.py": 1,
    "unit/remote/test_remote_fan_out.py": 1,
    "unit/system/test_process.py": 1,
    "unit/test_warm.py": 1,
}
"""How many a file has, below tests/ or in another package of tests: these numbers only fall. Use
`tests/support/wait.py`: `until`, or `Deadline`. What stays is a pause that is itself what a test is about: the pace of
a trainer, the moment of a kill."""
OWN = {"support/wait.py", "support/late_starts.py", "unit/test_deadlines.py"}


def _below(tests: Path, path: Path) -> str:
    return str(path.relative_to(tests if tests == TESTS else tests.parent))


def test_no_test_waits_by_hand() -> None:
    files = [(tests, path) for tests in packages.TESTS for path in tests.rglob("*.py")]
    numbers = {_below(tests, path): len(BY_HAND.findall(path.read_text())) for tests, path in files}
    found = {name: number for name, number in numbers.items() if number and name not in OWN}
    assert {name: number for name, number in found.items() if number > LEFT.get(name, 0)} == {}
