"""The walk against `du`, killed, and over what cannot be read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.storage.usage import scan
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.state import DAY, open_ledger_and_delete_on_success
from hyperpod_kit.storage.usage.walk import WalkRequest, walk_tree_into_ledger
from tests.unit.storage.usage.trees import count, du, plant

KILLED = """
import os, signal, sys
from pathlib import Path
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.storage.usage.ledger import UsageLedger

root, state, after = sys.argv[1], sys.argv[2], int(sys.argv[3])
walking.LIMIT = walking.FIRST_LIMIT = 60
walking.COMMIT_SECONDS = 0.0
request = walking.WalkRequest(root, workers=2)
ledger = UsageLedger(Path(state), request.resume_identity())

def progress(count):
    if count >= after:
        os.kill(os.getpid(), signal.SIGKILL)

walking.walk_tree_into_ledger(request, ledger, progress)
ledger.close()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    plant(made)
    return made


def test_files_of_any_size_cost_no_count(tmp_path: Path) -> None:
    """The largest size of a file takes no byte on disk: two of them are more than SQLite's numbers have."""
    largest = (1 << 63) - 1
    with contextlib.closing(UsageLedger(tmp_path / "state", {})) as ledger:
        for place in ("/fsx/a", "/fsx/b"):
            ledger.add_sums("", [(place, "", 4001, 4001, 2, 2 * largest, 2 * largest)])
            ledger.add_sums("", [(place, "", 4001, 4001, 1, 7, 7)])
            ledger.add_ages([("written", 0, 2, 2 * largest)])
        links = [(1, inode, "/fsx/a", "", 4001, 4001, largest, 2 * largest) for inode in (5, 6)]
        ledger.record_task_part(1, {"links": links, "end": True, "sums": [], "ages": [], "unread": []})
        rows = {row.counted_path: row for row in ledger.iterate_sums()}
        assert rows["/fsx/b"].size == largest and rows["/fsx/b"].entries == 3
        assert rows["/fsx/a"].size == rows["/fsx/a"].allocated == 3 * largest and rows["/fsx/a"].entries == 5
        assert list(ledger.iterate_age_classes()) == [("written", 0, 4, largest)]


def test_the_sums_are_those_of_du(root: Path, tmp_path: Path) -> None:
    found = count(root, tmp_path / "state")
    assert (found.total.allocated, found.total.entries) == du(root)
    assert found.total.size > 1 << 30
    for team in range(4):
        below = found.directories[str(root / f"team{team}")]
        # A file with two names is in one of the two directories, and both are below this one.
        assert (below.allocated, below.entries) == du(root / f"team{team}")
    assert sum(one.entries for one in found.users.values()) == found.total.entries
    assert not found.unread and not found.runs


def test_no_level_is_told_apart_at_depth_zero(root: Path, tmp_path: Path) -> None:
    found = count(root, tmp_path / "state", depth=0)
    assert list(found.directories) == [str(root)] and found.directories[str(root)] == found.total


def test_a_walk_that_is_killed_again_and_again_counts_each_file_once(root: Path, tmp_path: Path) -> None:
    state, earlier = tmp_path / "state", 0
    for after in range(300, 1200, 300):
        argv = [sys.executable, "-c", KILLED, str(root), str(state), str(after)]
        # Ends when the processes that look have ended, too.
        ended = subprocess.run(argv, timeout=60, stderr=subprocess.PIPE, text=True)
        assert ended.returncode == -signal.SIGKILL and not ended.stderr
        asked = WalkRequest(str(root))
        ledger = UsageLedger(state, asked.resume_identity())
        assert ledger.resumed and earlier < ledger.count_entries() < du(root)[1]
        earlier = ledger.count_entries()
        ledger.close()
    found = count(root, state)
    assert (found.total.allocated, found.total.entries) == du(root)


def test_a_process_that_dies_is_replaced_and_what_it_told_is_forgotten(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "FIRST_LIMIT", 60)
    monkeypatch.setattr(walking, "LIMIT", 60)
    victims: list[Any] = []
    hear = walking._Pool._record_parts_or_replace_dead_worker

    def killing(pool: walking._Pool, worker: walking._Worker) -> None:
        if len(victims) < 2:
            victims.append(worker.process.pid)
            worker.process.kill()
            worker.process.wait()
        hear(pool, worker)

    monkeypatch.setattr(walking._Pool, "_record_parts_or_replace_dead_worker", killing)
    found = count(root, tmp_path / "state", workers=2)
    assert len(victims) == 2 and (found.total.allocated, found.total.entries) == du(root)


def test_processes_that_always_die_end_the_walk(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "__file__", str(tmp_path / "nothing.py"))
    (tmp_path / "nothing.py").write_text("raise SystemExit(7)")
    with pytest.raises(HyperpodKitError, match="the last one ended with"):
        count(root, tmp_path / "state")


def test_a_directory_that_cannot_be_read_is_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    plant(root, directories=8, links=False)
    closed = root / "team1" / "user1"
    closed.chmod(0)
    expected = du(root)[1] - du(closed)[1] + 1 if not os.geteuid() else 0
    argv = [
        sys.executable,
        "-c",
        "import sys; from hyperpod_kit.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))",
    ]
    if not os.geteuid():
        # Root without what lets root read everything.
        os.chown(closed, 65534, 65534)
        argv = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *argv]
    words = ["storage", "usage", str(root), "--state", str(tmp_path / "s"), "--json"]
    ended = subprocess.run([*argv, *words], timeout=60, capture_output=True, text=True)
    closed.chmod(0o700)
    assert ended.returncode == 1, ended.stderr
    (body,) = json.loads(ended.stdout)["roots"]
    assert body["unread"] == [{"path": str(closed), "why": "Permission denied"}] and body["unread_count"] == 1
    assert body["total"]["entries"] == expected or os.geteuid()


def test_another_walk_of_the_same_is_told_so(tmp_path: Path) -> None:
    about = WalkRequest("/x").resume_identity()
    with open_ledger_and_delete_on_success(tmp_path / "s", about), pytest.raises(
        HyperpodKitError, match="another `storage usage`"
    ):
        open_ledger_and_delete_on_success(tmp_path / "s", about).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_an_old_walk_another_one_and_one_that_is_to_be_fresh_begin_anew(tmp_path: Path) -> None:
    about = WalkRequest("/x").resume_identity()

    def left(now: float, of: dict[str, object], **how: bool) -> bool:
        with pytest.raises(KeyError), open_ledger_and_delete_on_success(tmp_path / "s", of, now=now, **how) as ledger:
            resumed = ledger.resumed
            raise KeyError
        return resumed

    assert not left(1000.0, about)
    assert left(1000.0 + DAY, about)
    assert not left(1001.0 + DAY, about)
    assert left(1001.0 + DAY, about)
    assert not left(1001.0 + DAY, about, fresh=True)
    assert not left(1001.0 + DAY, WalkRequest("/x", depth=3).resume_identity())


def test_a_file_that_no_walk_left_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"my thesis " * 1000)
    with pytest.raises(HyperpodKitError, match="not a state file of `storage usage`"):
        open_ledger_and_delete_on_success(tmp_path / "s", WalkRequest("/x").resume_identity()).__enter__()
    assert (tmp_path / "s").read_bytes() == b"my thesis " * 1000


def test_what_is_removed_under_a_walk_is_no_error(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "FIRST_LIMIT", 60)
    hear = walking._Pool._record_parts_or_replace_dead_worker

    def removing(pool: walking._Pool, worker: walking._Worker) -> None:
        shutil.rmtree(root / "team2", ignore_errors=True)
        hear(pool, worker)

    monkeypatch.setattr(walking._Pool, "_record_parts_or_replace_dead_worker", removing)
    found = count(root, tmp_path / "state", workers=1)
    assert not found.unread and found.total.entries >= du(root)[1]


def test_memory_is_bounded_by_no_directory(tmp_path: Path) -> None:
    """5,000 directories side by side and 5,000 names of files that have two: what is told goes to the file."""
    wide, linked = tmp_path / "tree" / "wide", tmp_path / "tree" / "linked"
    for place in (wide, linked):
        place.mkdir(parents=True)
    for number in range(5_000):
        os.mkdir(wide / str(number))
        if number % 2:
            os.link(linked / str(number - 1), linked / str(number))
        else:
            os.close(os.open(linked / str(number), os.O_CREAT))
    argv = [sys.executable, "-c", PEAK, str(tmp_path / "tree"), str(tmp_path / "state")]
    entries, own, worker = map(int, subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())
    assert entries == du(tmp_path / "tree")[1] == 7_503
    assert own < 60_000 and worker < 30_000, "KiB"


PEAK = """
import resource, sys
from pathlib import Path
from tests.unit.storage.usage.trees import count

found = count(Path(sys.argv[1]), Path(sys.argv[2]), workers=2)
own = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(found.total.entries, own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_the_root_must_be_a_directory(tmp_path: Path) -> None:
    asked = WalkRequest(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        walk_tree_into_ledger(asked, UsageLedger(tmp_path / "s", asked.resume_identity()), lambda count: None)
