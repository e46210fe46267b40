"""`job goodput` of root reads what every user has written: what hangs or is dear costs its own line."""

from __future__ import annotations

import json
import os
import pwd
import tracemalloc
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from hyperpod_kit.errors import Absent, Unreachable
from hyperpod_kit.job.cli import main
from hyperpod_kit.job.goodput import command, time_rows
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.command import GroupTime
from hyperpod_kit.job.goodput.followed_root import FollowedFile
from hyperpod_kit.job.goodput.time_table import TimeTable
from hyperpod_kit.job.records import job_index, ledger
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.users import ATTACKER, ROOT, VICTIM
from tests.support.wait import slowness

HOUR = GroupTime(TimeTable({TimeCause.LASTED: 3600.0}, {TimeCause.LASTED: 7200.0}, {"imports": 1.0}))


def a_root(top: Path, name: str, uid: int) -> Path:
    root = top / "fsx" / name
    root.mkdir(mode=0o700)
    os.chown(root, uid, uid)
    return root


def noted(top: Path, uid: int, roots: List[Path], patch: pytest.MonkeyPatch) -> Path:
    """The home of a user, with the roots of that user's jobs."""
    home = top / str(uid)
    file = Path(job_index.index_file_path({"HOME": str(home)}))
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps({"job": str(n), "root": str(root)}) + "\n" for n, root in enumerate(roots)))
    for path in (home, *home.rglob("*")):
        os.chown(path, uid, uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return home


@pytest.fixture
def users(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Dict[int, Path]:
    """Homes: in the attacker's the roots are his, one that is the victim's, and one that is not there."""
    victims = [a_root(shared, "victim-1", VICTIM), a_root(shared, "victim-2", VICTIM)]
    attackers = [a_root(shared, f"attacker-{number}", ATTACKER) for number in (1, 2)]
    homes = {
        ATTACKER: noted(shared, ATTACKER, [*attackers, victims[0], shared / "fsx" / "absent"], monkeypatch),
        VICTIM: noted(shared, VICTIM, victims, monkeypatch),
    }
    entries = [pwd.struct_passwd((str(uid), "x", uid, uid, "", str(home), "")) for uid, home in homes.items()]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    monkeypatch.setenv("HOME", str(shared / "root"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(owner, "_SILENT", {})
    monkeypatch.setattr(command, "PATIENCE", OwnerLimits(3.0 * slowness(), 15.0 * slowness()))
    return homes


def counted(look: Callable[[str], Dict[str, GroupTime]] | None = None) -> tuple[Dict[str, GroupTime], List[str]]:
    problems: List[str] = []

    def listed(root: str) -> Dict[str, GroupTime]:
        os.listdir(root)
        return {os.path.basename(root): HOUR, "all": HOUR}

    return command.tables([], look or listed, problems), problems


@ROOT
def test_each_root_is_counted_once_as_whose_it_is(users: Dict[int, Path]) -> None:
    found, problems = counted()
    assert set(found) == {"attacker-1", "attacker-2", "victim-1", "victim-2", "all"}
    assert found["all"].table.total_gpu_seconds == 4 * 7200.0 and found["all"].table.parts == {"imports": 4.0}
    assert len(problems) == 2 and "Permission denied" in problems[1] and "absent" in problems[0], problems


@ROOT
@pytest.mark.parametrize("where", ["a root", "the notes", "the home"])
def test_what_does_not_answer_costs_one_line(
    where: str, users: Dict[int, Path], shared: Path, silent: Callable[..., None]
) -> None:
    home = users[ATTACKER]
    silent({"a root": shared / "fsx" / "attacker-2", "the notes": home / ".local", "the home": home}[where])
    found, problems = counted()
    assert {"victim-1", "victim-2"} <= set(found), problems
    assert len([problem for problem in problems if "does not answer" in problem]) == 1, problems


@ROOT
def test_what_takes_too_much_memory_costs_one_line(users: Dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MEMORY", 1 << 30)

    def look(root: str) -> Dict[str, GroupTime]:
        os.listdir(root)
        bytearray((2 << 30) if root.endswith("attacker-1") else 1)
        return {os.path.basename(root): HOUR}

    found, problems = counted(look)
    assert set(found) == {"attacker-2", "victim-1", "victim-2"}
    assert [problem for problem in problems if "MemoryError" in problem and "attacker-1" in problem]


@ROOT
def test_the_command_counts_what_can_be_counted(users: Dict[int, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goodput", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert len(problems) == 2, problems
    with pytest.raises(Absent, match=r"no such directory: .*nowhere"):
        main(["goodput", "--root", str(users[VICTIM].parent / "nowhere")])
    users[ATTACKER].rename(users[ATTACKER].with_name("gone"))
    users[VICTIM].rename(users[VICTIM].with_name("gone too"))
    with pytest.raises(Unreachable, match="no job is recorded"):
        counted()


def test_a_file_of_nothing_but_ends_of_lines_is_no_bomb(tmp_path: Path) -> None:
    size = 2 << 20
    (tmp_path / "attempts.jsonl").write_bytes(b"\n" * size)
    path = Path(time_rows.path(str(tmp_path), "x"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n" * size)
    readers: List[Callable[[], object]] = [
        lambda: time_rows.read(str(tmp_path), "x"),
        lambda: FollowedFile(str(path), size, time_rows.decoded).read_new(),
        lambda: ledger.read(str(tmp_path / "attempts.jsonl")),
    ]
    for read in readers:
        read()  # what is imported late is not of its lines
        tracemalloc.start()
        read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 * size, f"{peak / size:.1f} times the file"
