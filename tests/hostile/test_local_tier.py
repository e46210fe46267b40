"""Another user is first on the disk on which the victim's run keeps checkpoints near its node."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from hyperpod_kit.checkpoint.agent.persist import local, persist, seal
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.agent.shm.control_page import SlotState
from hyperpod_kit.errors import CheckpointError
from tests.hostile.captures import lay, within
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, place
from tests.support.rows import share

pytestmark = ROOT

ATTEMPT = "seq-000001.step-0000000010.e1-abc123"


class Ground:
    """A scratch that everybody writes to, and a capture of the victim's."""

    def __init__(self, found: Path) -> None:
        self.shm, self.disk, self.answer = found / "shm", found / "scratch", found / "answer"
        for path in (self.shm, self.disk):
            path.mkdir()
            path.chmod(0o1777)
        self.answer.touch()
        os.chown(self.answer, VICTIM, VICTIM)
        lay(self.shm, found / "root")
        self.folder = self.shm / f"hyperpod-kit-{VICTIM}"
        self.run = next(self.folder.glob("*.ctl")).name.split("-")[2]
        self.name = f"hpk-{VICTIM}-{self.run}"

    def as_victim(self, work: Callable[[], object]) -> str:
        """What the work returned, in words."""
        assert as_user(VICTIM, within(60, lambda: self.answer.write_text(str(work())))) == 0
        return self.answer.read_text()

    def write(self) -> str:
        """As the victim: this rank's part; the refusal in words, or ""."""
        [name] = shm_slots.own_slot_names(str(self.folder))
        slot = shm_slots.attach(str(self.folder), name)
        if slot.page is not None and slot.page.state == SlotState.CAPTURED:
            seal.seal(slot)
        try:
            local.write_part(
                seal.SlotShard(slot), local.open_local_store(str(self.disk), self.run), ATTEMPT, persist.WriteOptions()
            )
            return ""
        except CheckpointError as err:
            return str(err)

    def parts(self) -> List[str]:
        return [part.checkpoint_id for part in local.list_parts(str(self.disk), self.run, 0)]


@pytest.fixture
def ground() -> Iterator[Ground]:
    with place(0o755) as found:
        yield Ground(found)


KINDS: Dict[str, Callable[[str], Any]] = {
    "a directory": lambda path: os.mkdir(path, 0o777),
    "a file": lambda path: Path(path).touch(0o666),
    "a fifo": lambda path: os.mkfifo(path, 0o666),
    "a link to a directory of the attacker's": lambda path: (
        os.mkdir(path + ".real", 0o777),
        os.symlink(path + ".real", path),
    ),
    "a link to nothing": lambda path: os.symlink("/nowhere", path),
}


@pytest.mark.parametrize("kind", share(KINDS, 2))
def test_what_another_made_first_is_refused_with_its_owner(ground: Ground, kind: str) -> None:
    assert as_user(ATTACKER, lambda: (os.umask(0), KINDS[kind](str(ground.disk / ground.name)))) == 0
    assert f"of uid {ATTACKER}, expected a directory of uid {VICTIM}" in ground.as_victim(ground.write)
    assert not [path for path in ground.disk.rglob("*") if path.lstat().st_uid == VICTIM]
    assert ground.as_victim(ground.parts) == "[]"


def test_nobody_else_reads_or_replaces_a_part(ground: Ground) -> None:
    assert ground.as_victim(ground.write) == "" and ground.as_victim(ground.parts) == str([ATTEMPT])
    own = ground.disk / ground.name
    for work in (
        lambda: os.listdir(own),
        lambda: os.rename(own, ground.disk / "x"),
        lambda: (own / "x").touch(),
        lambda: (own / ATTEMPT / "shard-00000.safetensors").read_bytes(),
    ):
        assert as_user(ATTACKER, work) == 1


@pytest.mark.needs("access-lists")
def test_an_access_list_of_the_disks_lets_nobody_in(ground: Ground) -> None:
    """What is made in a directory inherits its default list; the mode's group bits are that list's mask."""
    entries = [(0x01, 7, -1), (0x02, 7, ATTACKER), (0x04, 7, -1), (0x10, 7, -1), (0x20, 7, -1)]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(ground.disk, "system.posix_acl_default", listed)
    assert ground.as_victim(ground.write) == ""
    assert as_user(ATTACKER, lambda: os.listdir(ground.disk / ground.name)) == 1
    shard = ground.disk / ground.name / ATTEMPT / "shard-00000.safetensors"
    assert as_user(ATTACKER, shard.read_bytes) == 1


def test_a_directory_that_was_open_to_all_is_closed_and_what_others_left_in_it_is_not_read(ground: Ground) -> None:
    assert ground.as_victim(ground.write) == ""
    own = ground.disk / ground.name
    own.chmod(0o777)
    report = own / ATTEMPT / "report-00000.json"
    data = report.read_bytes()

    def replace() -> None:
        os.rename(own / ATTEMPT, own / "gone")
        (own / ATTEMPT).mkdir()
        report.write_bytes(data)

    assert as_user(ATTACKER, replace) == 0
    assert ground.as_victim(ground.parts) == "[]"
    assert "exists" in ground.as_victim(lambda: _refused(ground.write))
    assert own.stat().st_mode & 0o777 == 0o700


def _refused(work: Callable[[], str]) -> str:
    try:
        return work()
    except OSError as err:
        return f"exists or not ours: {err}"
