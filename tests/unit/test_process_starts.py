"""The plugin that finds the tests that start processes finds each way of starting one, and runs no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import multiprocessing, os, subprocess
    import pytest
    from tests.support import warm

    @pytest.fixture(scope="module")
    def program():
        with subprocess.Popen(["sleep", "60"]) as started:
            yield started
            started.kill()

    def test_starts_nothing(tmp_path):
        (tmp_path / "file").write_text("")

    def test_forks():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def test_spawns_a_worker():
        worker = multiprocessing.get_context("spawn").Process(target=print)
        worker.start()
        worker.join()

    def test_asks_for_a_warm_program():
        warm.run(["-c", "pass"], os.environ, imported=("json",))

    def test_has_a_program_for_the_module(program):
        assert program.poll() is None

    def test_uses_the_program_of_another_test(program):
        assert program.poll() is None
"""


def test_tests_are_recorded_and_run_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]), prepend=os.pathsep)
    pytester.makepyfile(test_it=TESTS)
    words = ("-p", "no:cacheprovider", "-p", "tests.support.process_starts")
    path = tmp_path / "starts"
    result = pytester.runpytest_subprocess(*words, f"--record-starts={path}")
    result.assert_outcomes(passed=6)
    names = [line.partition("::")[2] for line in path.read_text().splitlines()]
    assert names == [
        "test_forks",
        "test_spawns_a_worker",
        "test_asks_for_a_warm_program",
        "test_has_a_program_for_the_module",
        "test_uses_the_program_of_another_test",
    ]
    result = pytester.runpytest_subprocess(*words, f"--only-starts={path}")
    result.assert_outcomes(passed=5, deselected=1)
