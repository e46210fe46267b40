"""`node audit` on a real file system with this kernel's fanotify: who did what, or a gap that is said."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from hyperpod_kit.errors import Absent, NodeError
from hyperpod_kit.node.file_audit import supervisor
from hyperpod_kit.node.file_audit.supervisor import AuditLog
from hyperpod_kit.storage.audit.logs import node_log
from hyperpod_kit.storage.audit.record import AuditGap
from hyperpod_kit.system.process import identify_unless_gone_or_zombie
from tests.support.serving_fuse import serving_mount
from tests.support.wait import until

ALICE, BOB = 2001, 2002


pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("mounts", "fanotify")]


class Watched:
    """A tmpfs of its own that is watched, or what is mounted there already."""

    def __init__(self, base: Path, mounted: bool = False) -> None:
        self.place = base / "fs"
        self.log = base / "audit.jsonl"
        self._own = not mounted
        if self._own:
            self.place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(self.place)], check=True)
        words = [sys.executable, "-m", "hyperpod_kit.node", "audit", str(self.place), "--log", str(self.log)]
        self.process = subprocess.Popen(words)
        until(lambda: self.ops("began"), what="beginning of the watch")

    def lines(self) -> List[Dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def ops(self, *which: str) -> List[Dict[str, Any]]:
        return [line for line in self.lines() if line["op"] in which]

    def collector(self) -> int:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(found[0]) if found else 0

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._own:
            subprocess.run(["umount", "-l", str(self.place)], check=True)


@pytest.fixture
def base() -> Iterator[Path]:
    """Not below pytest's own directory, into which other users must not look."""
    made = Path(tempfile.mkdtemp(prefix="hpk-audit-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@contextmanager
def watching(base: Path, mounted: bool = False) -> Iterator[Watched]:
    made = Watched(base, mounted)
    try:
        yield made
    finally:
        made.stop()


def short_lived(place: Path, number: int, uid: int) -> None:
    """A process that lives as long as its four operations take: no exec, so that it is a thousandth of a second."""
    child = os.fork()
    if child == 0:
        try:
            os.setgid(uid)
            os.setuid(uid)
            name, moved = f"{place}/{uid}-{number}", f"{place}/{uid}-{number} moved"
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600))
            os.rename(name, moved)
            os.unlink(moved)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def who_did_what(base: Path, count: int) -> None:
    """`count` processes of two users: for each operation the right user and path."""
    with watching(base) as it:
        for number in range(count):
            short_lived(it.place, number, ALICE if number % 2 else BOB)
        last = f"{it.place}/{ALICE if (count - 1) % 2 else BOB}-{count - 1} moved"
        until(lambda: any(line.get("path") == last for line in it.ops("delete")), 120, what="last operation in the log")
        it.process.send_signal(signal.SIGTERM)
        assert it.process.wait(30) == 0
        found = {(line["op"], line["path"]): line for line in it.lines() if "path" in line}
        for number in range(count):
            uid = ALICE if number % 2 else BOB
            name = f"{it.place}/{uid}-{number}"
            # Of a write the name is read when it is reported: renamed meanwhile, or removed.
            written = [found.get(("write", f"{name}{end}")) for end in ("", " moved", " (deleted)", " moved (deleted)")]
            done = [
                found["create", name],
                found["rename", name],
                found["delete", f"{name} moved"],
                *filter(None, written),
            ]
            assert len(done) == 4 and [line.get("uid") for line in done] == [uid] * 4, done
            assert found["rename", name]["new_path"] == f"{name} moved"
        records = list(node_log.parse_entries_marking_chain_gaps(it.log.read_text().splitlines(), "log"))
        assert not [one for one in records if isinstance(one, AuditGap)]


def test_who_was_gone_before_anybody_could_ask_is_said_to_be_unknown(base: Path) -> None:
    """A child without exec and without an open, gone at once: there is nothing to ask. Its operation is there."""
    with watching(base) as it:
        assert any(_seen_too_late(it, str(attempt)) for attempt in range(20)), "this machine is too busy for its limit"
        made = _made(it)
        assert made and all(line.get("uid", ALICE) == ALICE for line in made)
        assert all("ended before" in line["why"] for line in made if "uid" not in line)
        assert [line for line in made if "uid" not in line], "the processes had ended"


def _made(it: Watched) -> List[Dict[str, Any]]:
    return [line for line in it.ops("create") if line.get("directory")]


def _seen_too_late(it: Watched, name: str) -> bool:
    """Three directories of processes that are gone when the collector, at work elsewhere, comes to them; False when it
    was away for longer than its limit, and another collector has taken its place."""
    gaps, collector = len(it.ops("gap")), it.collector()
    os.kill(collector, signal.SIGSTOP)
    for number in range(3):
        _make_a_directory(it.place, f"{name}-{number}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(collector, signal.SIGCONT)

    def said() -> bool:
        # What an earlier try made may be said only now.
        return sum(f"/d{name}-" in line["path"] for line in _made(it)) == 3 or len(it.ops("gap")) > gaps

    until(said, what="3 directories, or a gap")
    if len(it.ops("gap")) == gaps:
        return True
    until(lambda: it.collector() not in (0, collector), what="next collector")
    return False


def _make_a_directory(place: Path, name: str) -> None:
    """In a process of Alice's that is gone at once."""
    child = os.fork()
    if child == 0:
        os.setuid(ALICE)
        os.mkdir(f"{place}/d{name}")
        os._exit(0)
    os.waitpid(child, 0)


def test_short_lived_processes_of_two_users(base: Path) -> None:
    who_did_what(base, 60)


@pytest.mark.full
def test_a_thousand_of_them(base: Path) -> None:
    who_did_what(base, 1000)


def test_a_collector_that_stands_still_holds_nobody_for_long_and_the_gap_is_said(base: Path) -> None:
    with watching(base) as it:
        (it.place / "a").write_text("1")
        first = it.collector()
        os.kill(first, signal.SIGSTOP)
        # Without the watch this open would wait for ever.
        assert (it.place / "a").read_text() == "1"
        until(lambda: it.ops("gap") and len(it.ops("began")) == 2, what="second collector")
        assert "silent" in it.ops("gap")[0]["why"] and it.collector() != first
        (it.place / "b").write_text("2")
        until(lambda: any(line["path"].endswith("/b") for line in it.ops("write")), what="what the second one saw")
        gaps = [
            one
            for one in node_log.parse_entries_marking_chain_gaps(it.log.read_text().splitlines(), "l")
            if isinstance(one, AuditGap)
        ]
        assert len(gaps) == 1, "the chain goes on over the gap"


def test_when_the_watch_is_killed_nobody_waits(base: Path) -> None:
    with watching(base) as it:
        child = it.collector()
        it.process.kill()
        it.process.wait()
        until(lambda: identify_unless_gone_or_zombie(child) is None, what="end of the collector with its watch")
        (it.place / "free").write_text("1")


def test_on_fuse_it_says_what_it_cannot_see(base: Path) -> None:
    with serving_mount(base / "fs"), watching(base, mounted=True) as it:
        (gap,) = it.ops("gap")
        assert "creating, removing and renaming" in gap["why"]
        (it.place / "a").write_text("1")
        until(lambda: [line for line in it.ops("write") if line["path"].endswith("/a")], what="what is seen there")
        assert it.ops("write")[0]["uid"] == 0


def test_a_log_that_ends_within_a_line_is_gone_on_with_and_the_tear_is_seen(base: Path) -> None:
    path = base / "log"
    first = AuditLog(str(path))
    for number in range(3):
        first.write({"op": "write", "path": f"/fsx/{number}" + "x" * 9000})
    AuditLog(str(path)).write({"op": "write", "path": "/fsx/again"})
    assert not [
        one
        for one in node_log.parse_entries_marking_chain_gaps(path.read_text().splitlines(), "l")
        if isinstance(one, AuditGap)
    ]
    os.truncate(path, path.stat().st_size - 20)
    AuditLog(str(path)).write({"op": "write", "path": "/fsx/after"})
    found = list(node_log.parse_entries_marking_chain_gaps(path.read_text().splitlines(), "l"))
    assert [one.path[:9] for one in found if not isinstance(one, AuditGap)][-1] == "/fsx/afte"
    assert len([one for one in found if isinstance(one, AuditGap)]) in (1, 2)


def test_what_would_wait_for_itself_is_refused(base: Path) -> None:
    with pytest.raises(Absent, match="not a mount point: an audit"):
        supervisor.supervise_audit(str(base), str(base / "log"))
    with pytest.raises(NodeError, match="would wait for itself"):
        supervisor.supervise_audit("/dev/shm", "/dev/shm/log")


def test_the_program_is_named_not_its_loader(base: Path) -> None:
    """The job of a program that ended before its environment was read is not known: one that was read is waited for."""
    numbers = itertools.count()
    with watching(base) as it:
        began = time.time()

        def created() -> list[dict[str, Any]]:
            directory = f"d{next(numbers)}"
            script = f"mkdir {it.place}/{directory}; true"  # a job's shell, which starts it
            subprocess.run(["sh", "-c", script], check=True, env={**os.environ, "SLURM_JOB_ID": "4711"})
            lines = until(lambda: [line for line in it.ops("create") if line["path"].endswith(f"/{directory}")])
            assert lines[0]["command"] == "mkdir" and lines[0]["directory"] is True and lines[0]["time"] >= began - 1
            return [line for line in lines if "job" in line]

        of_job = until(created, what="a directory whose program was read while it ran")[0]
        assert (of_job["job"], of_job["job_by"]) == ("4711", "environment")
