"""What was listed is exchanged before it is read: for a mount that never answers, or for a link into one. It costs its
own lines, whoever the files belong to, and not those of anybody else."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from hyperpod_kit.run import LocalRunner
from hyperpod_kit.storage.preload import files, hsm, run
from hyperpod_kit.storage.preload.files import PreloadList
from hyperpod_kit.storage.tier import run as tiering
from hyperpod_kit.storage.tier.rules import TierRule
from hyperpod_kit.storage.usage import report
from hyperpod_kit.storage.usage import walk as walking
from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.walk import WalkRequest
from hyperpod_kit.untrusted import owner
from tests.hostile.silent import quick
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.test_root_as_owner import a_run
from tests.hostile.users import ATTACKER, ROOT, VICTIM
from tests.support.wait import slowness
from tests.unit.storage.preload.test_preload import FAKE, RELEASED

pytestmark = ROOT
KINDS = ["a mount", "a link into one", "a mount on each file"]
OWNERS = {"root's": 0, "the victim's": VICTIM, "the attacker's": ATTACKER}


def a_tree(top: Path) -> Path:
    """A directory of root's with one of each user; in the attacker's there is a file of everybody's."""
    data = top / "fsx" / "data"
    for folder, uid in (("mallory", ATTACKER), ("good", VICTIM)):
        (data / folder).mkdir(parents=True)
        os.chown(data / folder, uid, uid)
        for name, whose in OWNERS.items():
            (data / folder / name).write_bytes(b"x" * 1000)
            os.chown(data / folder / name, whose, whose)
    return data


def exchange(kind: str, data: Path, silent: Callable[..., None]) -> None:
    mine = data / "mallory"
    if kind == "a mount on each file":
        for name in OWNERS:
            silent(mine / name, regular=True)
        return
    mine.rename(data / "aside")
    if kind == "a mount":
        mine.mkdir()
        silent(mine)
        return
    elsewhere = data.parent / "elsewhere"
    elsewhere.mkdir()
    silent(elsewhere)
    mine.symlink_to(elsewhere)
    os.chown(mine, ATTACKER, ATTACKER, follow_symlinks=False)


def of_mallory(data: Path) -> Dict[str, str]:
    return {str(data / "mallory" / name): name for name in OWNERS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_preload_names_what_was_exchanged_and_reads_the_rest(
    kind: str, shared: Path, silent: Callable[..., None]
) -> None:
    data = a_tree(shared)
    wanted = files.list_files([str(data)])
    assert len(wanted.files) == 6 and not wanted.unread
    exchange(kind, data, silent)
    done = run.run_preload(wanted, run.group_files_by_hsm_or_read_through(wanted), LocalRunner(), lambda line: None)
    assert set(done.failed) == set(of_mallory(data)), done.failed
    for why in done.failed.values():
        # At once, from what the kernel has written down, and not at the end of somebody's patience.
        assert f"uid {ATTACKER} has mounted" in why or f"symbolic link of uid {ATTACKER}" in why


@pytest.fixture
def lustre(shared: Path, monkeypatch: pytest.MonkeyPatch) -> PreloadList:
    """A tree of which every file is released, by the stand-in of `lfs`."""
    data = a_tree(shared)
    wanted = files.list_files([str(data)])
    state, program = shared / "lfs.json", shared / "bin" / "lfs"
    flags = ", ".join(f'"{file.path}": {RELEASED}' for file in wanted.files)
    state.write_text(f'{{"flags": {{{flags}}}, "queue": {{}}, "slow": 2, "drops": {{}}}}')
    state.chmod(0o666)
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/python3 -I -S {shared}/fake_lfs.py "$@"\n')
    (shared / "fake_lfs.py").write_bytes(FAKE.read_bytes())
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_LFS", str(state))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    defaults = hsm.restore_and_wait.__kwdefaults__ or {}
    monkeypatch.setattr(hsm.restore_and_wait, "__kwdefaults__", {**defaults, "sleep": lambda seconds: None})
    return wanted


@pytest.mark.parametrize("kind", KINDS)
def test_lustre_is_not_asked_about_what_was_exchanged(
    kind: str, shared: Path, lustre: PreloadList, silent: Callable[..., None]
) -> None:
    data = shared / "fsx" / "data"
    exchange(kind, data, silent)
    ways = {run.LUSTRE: list(lustre.files), run.READ_THROUGH: []}
    done = run.run_preload(lustre, ways, LocalRunner(), lambda line: None, patience=5)
    assert set(done.failed) == set(of_mallory(data)), done.failed


@pytest.mark.parametrize("as_root", [True, False])
def test_a_file_that_goes_while_lustre_is_asked_fails_alone(as_root: bool, shared: Path, lustre: PreloadList) -> None:
    data = shared / "fsx" / "data"
    gone = data / "mallory" / "the attacker's"
    gone.unlink()
    if not as_root:
        lustre = PreloadList(tuple(file.__class__(file.path, file.size) for file in lustre.files), ())
    ways = {run.LUSTRE: list(lustre.files), run.READ_THROUGH: []}
    done = run.run_preload(lustre, ways, LocalRunner(), lambda line: None, patience=5)
    assert done.failed == {str(gone): "No such file or directory"}


def test_what_was_read_before_a_file_system_died_stays_read(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the kernel serves lets wait without anybody's ill will."""
    data = a_tree(shared)
    wanted = files.list_files([str(data)])
    dead = str(data / "good" / "root's")
    quick(monkeypatch)
    open_file = files.open_file

    def opened(file: files.PreloadFile) -> int:
        if file.path == dead:
            os.read(os.pipe()[0], 1)
        return open_file(file)

    monkeypatch.setattr(sys.modules["hyperpod_kit.storage.preload.read_through"], "open_file", opened)
    done = run.run_preload(wanted, run.group_files_by_hsm_or_read_through(wanted), LocalRunner(), lambda line: None)
    assert list(done.failed) == [dead] and "does not answer" in done.failed[dead]


def runs_of(fsx: Path, uid: int, count: int) -> List[Path]:
    roots = [fsx / f"{uid}-{number}" for number in range(count)]
    for root in roots:
        a_run(root, uid, 0o755)
    return roots


@pytest.mark.parametrize("when", ["before it is planned", "after it was planned"])
def test_of_one_user_a_few_are_waited_for(
    when: str, shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else so many minutes pass as that user has runs, or checkpoints in one."""
    quick(monkeypatch)
    monkeypatch.setattr(owner, "SILENCES", 1)
    theirs, good = runs_of(shared / "fsx", ATTACKER, 3), runs_of(shared / "fsx", VICTIM, 1)
    rule = TierRule(older_than=1.0, keep=1)
    if when == "before it is planned":
        for root in theirs:
            silent(root)
    planned = tiering.make_plan([str(root) for root in [*theirs, *good]], rule, time.time() + 1e6)
    reasons = [why for _, why in planned.failed]
    if when == "after it was planned":
        assert not reasons and len(planned.choice.go) == 8
        for root in theirs:
            silent(root)
    done = tiering.apply_plan(planned, rule, str(shared / "archive"), lambda item: None)
    reasons += [why for _, why in done.retained]
    assert {item.root for item in done.removed} == {str(root) for root in good}
    assert len(reasons) == (3 if planned.failed else 6)
    assert ["was not checked" in why for why in reasons] == [False] + [True] * (len(reasons) - 1), reasons


@pytest.mark.full
def test_as_many_processes_as_one_user_can_hold_up_do_not_end_a_count(
    shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has come to a mount that was not there when it was started."""
    data, processes = a_tree(shared), 4
    for number in range(2 * processes):
        place = data / "mallory" / f"d{number}"
        place.mkdir()
        (place / "file").touch()
        silent(place / "file", regular=True)
    monkeypatch.setattr(walking, "HANG_SECONDS", 2.0 * slowness())
    monkeypatch.setattr(walking, "MAX_HANGS", 1)
    for name in ("BATCH", "LIMIT", "FIRST_LIMIT"):  # so that every process gets some of them
        monkeypatch.setattr(walking, name, 1)
    known, started = walking._Pool._render_config, []

    def ignorant(pool: walking._Pool) -> str:
        config = json.loads(known(pool))
        started.append(pool)
        if len(started) <= processes:
            config["elsewhere"] = []
        return json.dumps(config)

    monkeypatch.setattr(walking._Pool, "_render_config", ignorant)
    asked = WalkRequest(str(data), workers=processes)
    ledger = UsageLedger(shared / "archive" / "state", asked.resume_identity())
    walking.walk_tree_into_ledger(asked, ledger, lambda count: None)
    found = report.make_report(str(data), ledger)
    ledger.close()
    assert len(started) > processes + 1 and found.users[str(VICTIM)].entries == 3
