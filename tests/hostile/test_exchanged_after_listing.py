"""What was listed is exchanged before it is read: for a mount that never answers, or for a link into one. It costs its
own lines, whoever the files belong to, and not those of anybody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Callable, Dict

import pytest

from hyperpod_kit.run import LocalRunner
from hyperpod_kit.storage.preload import files, hsm, run
from hyperpod_kit.storage.preload.files import PreloadList
from tests.hostile.silent import quick
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.users import ATTACKER, ROOT, VICTIM
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
    kind: str, shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_tree(shared)
    wanted = files.listed([str(data)])
    assert len(wanted.files) == 6 and not wanted.unread
    exchange(kind, data, silent)
    quick(monkeypatch)
    done = run.run(wanted, run.plan(wanted), LocalRunner(), lambda line: None)
    assert set(done.failed) == set(of_mallory(data)), done.failed
    for why in done.failed.values():
        # At once, from what the kernel has written down, and not at the end of somebody's patience.
        assert f"uid {ATTACKER} has mounted" in why or f"symbolic link of uid {ATTACKER}" in why


@pytest.fixture
def lustre(shared: Path, monkeypatch: pytest.MonkeyPatch) -> PreloadList:
    """A tree of which every file is released, by the stand-in of `lfs`."""
    data = a_tree(shared)
    wanted = files.listed([str(data)])
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
    defaults = hsm.restore.__kwdefaults__ or {}
    monkeypatch.setattr(hsm.restore, "__kwdefaults__", {**defaults, "sleep": lambda seconds: None})
    return wanted


@pytest.mark.parametrize("kind", KINDS)
def test_lustre_is_not_asked_about_what_was_exchanged(
    kind: str, shared: Path, lustre: PreloadList, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shared / "fsx" / "data"
    exchange(kind, data, silent)
    quick(monkeypatch)
    ways = {run.LUSTRE: list(lustre.files), run.OTHERS: []}
    done = run.run(lustre, ways, LocalRunner(), lambda line: None, patience=5)
    assert set(done.failed) == set(of_mallory(data)), done.failed


@pytest.mark.parametrize("as_root", [True, False])
def test_a_file_that_goes_while_lustre_is_asked_fails_alone(
    as_root: bool, shared: Path, lustre: PreloadList, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shared / "fsx" / "data"
    gone = data / "mallory" / "the attacker's"
    gone.unlink()
    if not as_root:
        lustre = PreloadList(tuple(file.__class__(file.path, file.size) for file in lustre.files), ())
    ways = {run.LUSTRE: list(lustre.files), run.OTHERS: []}
    done = run.run(lustre, ways, LocalRunner(), lambda line: None, patience=5)
    assert done.failed == {str(gone): "No such file or directory"}


def test_what_was_read_before_a_file_system_died_stays_read(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the kernel serves lets wait without anybody's ill will."""
    data = a_tree(shared)
    wanted = files.listed([str(data)])
    dead = str(data / "good" / "root's")
    quick(monkeypatch)
    open_file = files.opened

    def opened(file: files.PreloadFile) -> int:
        if file.path == dead:
            os.read(os.pipe()[0], 1)
        return open_file(file)

    monkeypatch.setattr(sys.modules["hyperpod_kit.storage.preload.through"], "opened", opened)
    done = run.run(wanted, run.plan(wanted), LocalRunner(), lambda line: None)
    assert list(done.failed) == [dead] and "does not answer" in done.failed[dead]
