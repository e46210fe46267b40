"""Root names a path, and on the way lies a link of a user's: root acts on nothing there that is not that user's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Tuple

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.walk import NOBODY
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.test_root_as_owner import a_run
from tests.hostile.users import ATTACKER, ROOT, VICTIM

pytestmark = ROOT


def link(path: Path, target: Path, uid: int) -> Path:
    path.symlink_to(target)
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def contents(top: Path) -> Dict[str, Tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in [top, *top.rglob("*")]}


@pytest.mark.parametrize("where", ["the run", "above the run"])
def test_nothing_of_the_victims_changes(where: str, shared: Path) -> None:
    fsx = shared / "fsx"
    names = a_run(fsx / "private", VICTIM, 0o700, count=4)
    if where == "the run":
        named = link(fsx / "mallory", fsx / "private", ATTACKER)
    else:
        named = link(fsx / "mallory", fsx, ATTACKER) / "private"
    before = contents(fsx / "private")
    for words in (
        ["checkpoint", "prune", str(named), "--latest", "1"],
        ["checkpoint", "pin", str(named), names[0]],
        ["checkpoint", "repair", str(named)],
        ["storage", "tier", str(named), "--older-than", "1s", "--keep", "1", "--to", str(shared / "archive")],
        ["storage", "tier", str(named), "--older-than", "1s", "--keep", "1", "--delete"],
        ["storage", "usage", str(named), "--fresh"],
    ):
        assert run_command_line(words) == 1, words
    assert contents(fsx / "private") == before and not list((shared / "archive").iterdir())


def test_links_of_ones_own_and_of_roots_are_followed(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fsx = shared / "fsx"
    names = a_run(fsx / "run", VICTIM, 0o700, count=4)
    mine = link(fsx / "mine", fsx / "run", VICTIM)
    roots = link(fsx / "roots", mine, 0)
    assert (
        owner.uid_to_act_as_if_root(str(mine))
        == owner.uid_to_act_as_if_root(str(roots))
        == owner.uid_to_act_as_if_root(str(fsx / "run"))
        == VICTIM
    )
    assert run_command_line(["checkpoint", "ls", str(roots)]) == 0 and names[0] in capsys.readouterr().out
    assert run_command_line(["checkpoint", "prune", str(roots), "--latest", "1"]) == 0
    assert names[-1] in os.listdir(fsx / "run") and names[0] not in os.listdir(fsx / "run")


def test_what_is_not_there_is_looked_for_as_who_could_put_it_there(shared: Path) -> None:
    """A link that comes the moment after leads root nowhere."""
    fsx = shared / "fsx"
    (fsx / "mallory").mkdir()
    os.chown(fsx / "mallory", ATTACKER, ATTACKER)
    (fsx / "mallory" / "roots").mkdir()
    found = {
        name: owner.uid_to_act_as_if_root(str(place))
        for name, place in {
            "everybody's": fsx / "absent",
            "root's": shared / "archive" / "absent" / "below",
            "the attacker's": fsx / "mallory" / "absent",
            "root's in the attacker's": fsx / "mallory" / "roots" / "absent",
            "behind a file": fsx / "mallory" / "file" / "absent",
            "a dangling link": link(fsx / "dangling", fsx / "mallory" / "absent", ATTACKER),
        }.items()
    }
    theirs = ["the attacker's", "root's in the attacker's", "behind a file", "a dangling link"]
    assert found == {"everybody's": NOBODY, "root's": 0, **dict.fromkeys(theirs, ATTACKER)}
    assert run_command_line(["checkpoint", "ls", str(fsx / "absent")]) == 3
    with pytest.raises(Untrusted, match=f"symbolic link of uid {ATTACKER}"):
        owner.uid_to_act_as_if_root(str(link(fsx / "odd", shared / "archive" / "absent", ATTACKER)))
    link(fsx / "loop", fsx / "loop", ATTACKER)
    with pytest.raises(OSError, match="levels of symbolic links"):
        owner.uid_to_act_as_if_root(str(fsx / "loop"))


def test_what_a_user_serves_is_theirs_and_is_not_asked(shared: Path, silent: Callable[..., None]) -> None:
    mine = shared / "fsx" / "mallory"
    (mine / "run").mkdir(parents=True)
    silent(mine / "run")
    assert owner.uid_to_act_as_if_root(str(mine / "run" / "below")) == ATTACKER
    with pytest.raises(Untrusted, match="symbolic link"):
        owner.uid_to_act_as_if_root(str(link(mine / "victims", mine / "run", VICTIM)))
