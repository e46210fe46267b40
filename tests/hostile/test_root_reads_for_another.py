"""Root reads a run for something of its own, a file or a comparison: with the rights of the run's owner, whatever the
owner lets its names lead to."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Callable, List

import pytest

from hyperpod_kit.checkpoint.convert.files import byte_sources
from hyperpod_kit.checkpoint.repository.store import owners
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.untrusted import source_owner
from tests.hostile.acts.ground import own
from tests.hostile.silent import quick
from tests.hostile.silent import shared as shared
from tests.hostile.silent import silent as silent
from tests.hostile.test_root_as_owner import a_run
from tests.hostile.users import ATTACKER, ROOT, VICTIM
from tests.support.rows import full
from tests.unit.checkpoint.small_checkpoint import put_tensors

torch = pytest.importorskip("torch")

pytestmark = ROOT


def words_of(kind: str, root: Path, out: Path, attempt: str) -> List[str]:
    return {
        "diff": ["checkpoint", "diff", str(root), f"{root}/{attempt}"],
        "get": ["checkpoint", "get", str(root), "w", "--out", str(out / "w.npy"), "--attempt", attempt],
        "export": ["checkpoint", "export", str(root), "--to", "torch", "--out", str(out / "w.pt")],
    }[kind]


@pytest.mark.parametrize("kind", ["diff", *full("get", "export")])
def test_nothing_is_read_that_the_owner_could_not_read(
    kind: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker's newest checkpoint is a link to the victim's, whose files nobody else may read."""
    fsx = shared / "fsx"
    private = a_run(fsx / "private", VICTIM, 0o700)
    names = a_run(fsx / "mallory", ATTACKER, 0o755)
    os.rename(fsx / "mallory" / names[-1], fsx / "mallory" / "aside")
    (fsx / "mallory" / names[-1]).symlink_to(fsx / "private" / private[-1])
    opened: List[str] = []
    real = PosixStore.read

    def noted(self: PosixStore, name: str, *most: int) -> bytes:
        data = real(self, name, *most)
        opened.append(os.path.realpath(f"{self.url}/{name}"))
        return data

    monkeypatch.setattr(PosixStore, "read", noted)
    monkeypatch.setattr("hyperpod_kit.untrusted.owner.run_as_user_in_child", lambda work, *_: work())
    assert run_command_line(words_of(kind, fsx / "mallory", tmp_path, names[-1])) != 0
    assert not [path for path in opened if "private" in path] and os.geteuid() == 0


@pytest.mark.parametrize("kind", ["diff", *full("get", "export")])
def test_a_run_behind_anothers_link_is_refused(kind: str, shared: Path, tmp_path: Path) -> None:
    fsx = shared / "fsx"
    names = a_run(fsx / "private", VICTIM, 0o700)
    (fsx / "mallory").symlink_to(fsx / "private")
    os.chown(fsx / "mallory", ATTACKER, ATTACKER, follow_symlinks=False)
    assert run_command_line(words_of(kind, fsx / "mallory", tmp_path, names[-1])) == 1


@pytest.mark.parametrize("kind", ["safetensors", *full("torch")])
def test_nothing_is_imported_that_the_owner_could_not_read(kind: str, shared: Path, tmp_path: Path) -> None:
    """Where the user has a folder of theirs, in which a file is a link to the victim's."""
    fsx = shared / "fsx"
    torch.save({"w": torch.ones(4)}, tmp_path / "torch")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    for name, uid in (("private", VICTIM), ("mallory", ATTACKER)):
        (fsx / name).mkdir()
        (fsx / name / "w").write_bytes((tmp_path / kind).read_bytes())
        own(fsx / name, uid, 0o700)
    words = ["checkpoint", "import", str(fsx / "mallory" / "w"), "--from", kind, "--step", "1", "--out"]
    assert run_command_line([*words, str(tmp_path / "theirs")]) == 0
    (fsx / "mallory" / "w").unlink()
    (fsx / "mallory" / "w").symlink_to(fsx / "private" / "w")
    source_owner.set_process_source_uid(ATTACKER)
    try:
        with pytest.raises(PermissionError):
            byte_sources.open_regular_file(fsx / "mallory" / "w")
    finally:
        source_owner.set_process_source_uid(None)
    os.chown(fsx / "mallory" / "w", ATTACKER, ATTACKER, follow_symlinks=False)
    assert run_command_line([*words, str(tmp_path / "victims")]) != 0 and not (tmp_path / "victims").exists()


def test_two_users_runs_are_compared_each_as_its_owner(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fsx = shared / "fsx"
    for number, (name, uid) in enumerate((("one", ATTACKER), ("two", VICTIM)), start=1):
        (fsx / name).mkdir()
        put_tensors(PosixStore(str(fsx / name)), number)
        own(fsx / name, uid, 0o700)
        store = owners.open_as_owner(str(fsx / name))
        assert isinstance(store, owners.OwnersStore) and len(store.list()) >= 2
        attempt = next(each for each in store.list() if each.startswith("seq-")).rstrip("/")
        assert store.read(f"{attempt}/MANIFEST.json") and os.geteuid() == 0
        store.create("made", b"x")
        assert (fsx / name / "made").stat().st_uid == (fsx / name).stat().st_uid
    assert run_command_line(["checkpoint", "diff", str(fsx / "one"), str(fsx / "two")]) == 1
    assert "tensors: 2 changed" in capsys.readouterr().out


def test_a_mount_that_does_not_answer_ends_it(
    shared: Path, silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    names = a_run(shared / "fsx" / "run", ATTACKER, 0o755)
    silent(shared / "fsx" / "run" / names[-1])
    assert run_command_line(["checkpoint", "diff", str(shared / "fsx" / "run"), names[0]]) == 3
