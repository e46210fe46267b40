"""The probe against real answers: directories, nothing, full and read-only mounts, FUSE mounts that hang or die."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

from hyperpod_kit.node.observe import probe as module
from hyperpod_kit.node.observe.check import process_start_ticks_or_none
from hyperpod_kit.node.observe.probe import Probed, probe, probe_all
from tests.support.wait import Deadline, scaled, until

FUSE = pytest.mark.needs("fuse")
ROOT = pytest.mark.needs("mounts")
AMPLE = 120.0
"""Seconds for an answer that comes: a busy machine takes long to start a prober."""


def test_a_directory_answers(tmp_path: Path) -> None:
    found = probe(str(tmp_path), AMPLE)
    assert found.outcome == "answered"
    assert found.size > found.available > 0 and not found.read_only and found.latency_ms >= 0 and found.pid is None


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    found = probe(str(tmp_path / "no"), AMPLE, "lw")
    assert (found.outcome, found.errno, found.operation) == ("error", errno.ENOENT, "stat")


def test_a_directory_that_was_removed_while_it_was_open_is_stale(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    handle = os.open(gone, os.O_RDONLY)
    try:
        gone.rmdir()
        found = probe(f"/proc/{os.getpid()}/fd/{handle}", AMPLE)
    finally:
        os.close(handle)
    assert (found.outcome, found.errno, found.operation) == ("error", errno.ESTALE, "stat")


def test_many_paths_are_answered_in_order_and_names_are_names(tmp_path: Path) -> None:
    strange = [tmp_path / name for name in ("a b", "-n", "ü\n2", "$(x)")]
    for path in strange:
        path.mkdir()
    found = probe_all([*((str(path), "w") for path in strange), (str(tmp_path / "no"), "")], AMPLE)
    assert [one.outcome for one in found] == ["answered"] * 4 + ["error"]
    assert [one.errno for one in found[:4]] == [0] * 4


def test_a_write_leaves_nothing_and_takes_away_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".hyperpod-kit-probe-a").write_text("left over")
    found = probe_all([(str(tmp_path), "lw")], AMPLE, ".hyperpod-kit-probe-a")[0]
    assert (found.outcome, found.errno) == ("answered", 0)
    assert list(tmp_path.iterdir()) == []


def test_looks_at_the_same_moment_do_not_fail_each_other(tmp_path: Path) -> None:
    targets = [(str(tmp_path), "w")] * 3
    for _ in range(4):
        assert [one.errno for one in probe_all(targets, AMPLE)] == [0] * 3
    assert list(tmp_path.iterdir()) == []


def children() -> set[str]:
    """Pids of this process's children, those that nobody has waited for included; other tests may have some."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_it_leaves_no_child_and_no_descriptor(tmp_path: Path) -> None:
    descriptors, processes = set(os.listdir("/proc/self/fd")), children()
    for _ in range(3):
        probe(str(tmp_path), AMPLE)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert children() <= processes


def test_a_process_with_threads_never_forks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    found: list[Probed] = []
    threads = [threading.Thread(target=lambda: found.append(probe(str(tmp_path), AMPLE))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [one.outcome for one in found] == ["answered"] * 4


def test_a_prober_that_never_runs_says_nothing_about_the_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(module, "PROGRAM", str(idle))
    deadline = Deadline(30)
    assert probe(str(tmp_path), 0.2).outcome == "not_asked"
    assert not deadline.has_passed(), "it was waited for"
    idle.write_text("")
    assert probe(str(tmp_path), AMPLE).outcome == "not_asked"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], timeout=20, check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


@ROOT
def test_full_and_read_only_are_what_a_write_says(small: Path) -> None:
    handle = os.open(small / "ballast", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        while True:
            os.write(handle, bytes(65536))
    os.close(handle)
    full = probe(str(small), AMPLE, "w")
    assert (full.outcome, full.errno, full.operation, full.available) == ("answered", errno.ENOSPC, "write", 0)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True, timeout=20)
    found = probe(str(small), AMPLE, "lw")
    assert (found.outcome, found.errno, found.read_only) == ("answered", errno.EROFS, True)


def gone(pid: int) -> bool:
    return until(lambda: process_start_ticks_or_none(pid) is None, what="end of the prober")


@pytest.mark.rehearsal
@FUSE
def test_a_hung_mount_costs_the_deadline_and_no_more(tmp_path: Path, silent_mount: Any) -> None:
    with silent_mount(tmp_path / "hung"):
        seconds = scaled(2.0)
        targets = [(str(tmp_path / "hung"), "w"), (str(tmp_path), ""), (str(tmp_path / "hung"), "")]

        def all_asked() -> Any:
            deadline = Deadline(2 * seconds)
            probes = probe_all(targets, seconds)
            assert not deadline.has_passed(), "one after the other"
            # A prober that a busy machine has not started in time says so.
            if any(probe.outcome == "not_asked" for probe in probes):
                return None
            return probes

        found = until(all_asked, what="probers that have asked")
        # One that hangs makes no other one slow.
        assert [one.outcome for one in found] == ["no_answer", "answered", "no_answer"]
        for one in (found[0], found[2]):
            assert one.pid is not None and gone(one.pid), "the prober is still there"


@pytest.mark.rehearsal
@FUSE
def test_a_prober_that_hangs_holds_nothing_of_ours(
    tmp_path: Path, silent_mount: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def look(pid: int, number: int) -> None:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            seen[descriptor] = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        seen["parent"] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        real(pid, number)

    real = os.kill
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)  # as slurmd's pipes are
    with silent_mount(tmp_path / "hung"):
        monkeypatch.setattr(os, "kill", look)
        found = probe(str(tmp_path / "hung"), scaled(1.0))
    os.close(reader)
    os.close(writer)
    assert found.outcome == "no_answer"
    assert seen.pop("parent") != str(os.getpid())
    assert seen.pop("1").startswith("pipe:")  # where the answer goes; nobody reads it any more
    assert seen == {"0": "/dev/null", "2": "/dev/null"}


@pytest.mark.rehearsal
@FUSE
def test_a_dead_mount_says_so_at_once(tmp_path: Path, silent_mount: Any) -> None:
    with silent_mount(tmp_path / "dead") as handle:
        os.close(handle)
        found = probe(str(tmp_path / "dead"), AMPLE)
    assert (found.outcome, found.errno) == ("error", errno.ENOTCONN)


@pytest.mark.rehearsal
@FUSE
def test_a_daemon_that_is_stopped_hangs_and_one_that_is_killed_is_dead(tmp_path: Path, serving_mount: Any) -> None:
    path = tmp_path / "mount"
    with serving_mount(path) as daemon:
        assert probe(str(path), AMPLE, "lw").outcome == "answered"
        daemon.send_signal(signal.SIGSTOP)
        assert probe(str(path), scaled(5.0), "lw").outcome == "no_answer"
        daemon.send_signal(signal.SIGCONT)
        assert probe(str(path), AMPLE).outcome == "answered"
        daemon.kill()
        daemon.wait(20)
        dead = probe(str(path), AMPLE)
        assert (dead.outcome, dead.errno) == ("error", errno.ENOTCONN)
