"""What somebody has put in the place of a root's files: never waited for, never read without an end, never followed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.checkpoint.agent.shm import lock
from hyperpod_kit.checkpoint.commands import cli
from hyperpod_kit.checkpoint.repository import retention, selection
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity, lease, pins
from hyperpod_kit.checkpoint.repository.store import root_files
from hyperpod_kit.checkpoint.repository.store.base import SMALL, NotAnObject
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.repository.store.restricted import RestrictedStore
from hyperpod_kit.errors import CheckpointError, StorageUnreadable
from tests.support.rows import share
from tests.unit.checkpoint.small_checkpoint import SMALL_RUN, put_checkpoint

Put = Callable[[Path], None]


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    (tmp_path / "root").mkdir()
    return PosixStore(str(tmp_path / "root"))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_fifo(path: Path) -> None:
    os.mkfifo(path.parent / ".fifo")
    path.symlink_to(path.parent / ".fifo")


def socket_(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def directory(path: Path) -> None:
    path.mkdir()


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_null(path: Path) -> None:
    path.symlink_to("/dev/null")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def link_out(path: Path) -> None:
    """To the same bytes, outside: what is not in the root is not the root's."""
    path.symlink_to(path.parent.parent.parent / "copy")


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


PUT = [fifo, link_to_fifo, socket_, directory, link_to_zeros, link_to_null, loop, dangling, link_out, sparse]
EVERY = pytest.mark.parametrize("put", PUT)


@pytest.mark.parametrize("put", share(PUT, 2))
@pytest.mark.parametrize("name", [layout.MANIFEST_FILE, layout.EXTRA_FILE, layout.shard_file(0)])
def test_in_the_place_of_an_attempts_file_it_is_damage(store: PosixStore, tmp_path: Path, name: str, put: Put) -> None:
    old, new = put_checkpoint(store, 1), put_checkpoint(store, 2)
    path = Path(store.url, new, name)
    path.rename(tmp_path / "copy")
    put(path)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as caught:
        verify.verify_checkpoint(store, new)
    assert not isinstance(caught.value, StorageUnreadable) and not verify.is_storage_failure(caught.value)
    found = selection.load_newest_accepted(store, lambda attempt: verify.verify_checkpoint(store, attempt))[1]
    assert found.checkpoint_id == old and found.rejected[0][0] == new
    for words, code in ((["ls"], 0), (["verify"], 1), (["prune", "--latest", "1"], 0)):
        assert cli.main([words[0], store.url, *words[1:]]) == code


@EVERY
@pytest.mark.parametrize("name", [layout.LATEST_FILE, "epoch-000001.json", layout.RUN_FILE, layout.LEASES, layout.PINS])
def test_in_the_place_of_a_roots_file_the_checkpoints_are_there(
    store: PosixStore, tmp_path: Path, name: str, put: Put
) -> None:
    new = put_checkpoint(store, 1)
    (tmp_path / "root" / "sub").mkdir()
    path = Path(store.url, name)
    path.unlink(missing_ok=True)
    (tmp_path / "copy").write_bytes(b"{}")
    put(path)
    assert selection.newest_valid(store).checkpoint_id == new
    assert identity.read_or_infer_identity(store) == SMALL_RUN
    put_checkpoint(store, 2)  # what is written goes on, beside it or not at all
    assert not Path(store.url, "nowhere").exists() and (tmp_path / "copy").read_bytes() == b"{}"


def test_a_hint_that_has_another_name_too_is_not_written_over(store: PosixStore, tmp_path: Path) -> None:
    """A hard link to another file of the same user: truncating it would be that file's end."""
    (tmp_path / "diary").write_text("dear")
    os.link(tmp_path / "diary", Path(store.url, layout.LATEST_FILE))
    put_checkpoint(store, 1)
    assert (tmp_path / "diary").read_text() == "dear"
    with pytest.raises(NotAnObject, match="LATEST has 2 names"):
        store.overwrite_non_atomically(layout.LATEST_FILE, b"x")


def test_a_real_error_is_no_damage(store: PosixStore, monkeypatch: pytest.MonkeyPatch) -> None:
    new = put_checkpoint(store, 1)
    real = os.open

    def failing(path: str, *rest: int, **more: int) -> int:
        if str(path).endswith(layout.MANIFEST_FILE):
            raise OSError(5, "Input/output error", path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(StorageUnreadable, match=new):
        selection.load_newest_accepted(store, lambda attempt: verify.verify_checkpoint(store, attempt))


def test_what_grows_while_it_is_read_ends(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(bytes(100))
    assert root_files.read(str(path), 100) == bytes(100)
    with pytest.raises(NotAnObject, match="small has 100 bytes, expected at most 99"):
        root_files.read(str(path), 99)
    os.truncate(path, SMALL + 1)
    with pytest.raises(NotAnObject, match=f"expected at most {SMALL}"):
        root_files.read(str(path))


@pytest.fixture
def archived(store: PosixStore, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The oldest of three attempts was moved elsewhere and left as a link, as admins do; another's file is with it."""
    names = [put_checkpoint(store, seq) for seq in (1, 2, 3)]
    shutil.move(Path(store.url, names[0]), tmp_path / "archive")
    Path(store.url, names[0]).symlink_to(tmp_path / "archive")
    (tmp_path / "archive" / "precious.txt").write_text("mine")
    yield names[0], tmp_path / "archive"


def test_what_lies_behind_a_link_is_read_and_never_deleted(
    store: PosixStore, archived: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    name, place = archived
    before = sorted(path.name for path in place.iterdir())
    verify.verify_checkpoint(store, name)
    assert cli.main(["prune", store.url, "--latest", "1"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(name))
    assert "keep" in line and f"a symbolic link to {place}: nothing is deleted through a link" in line
    assert sorted(path.name for path in place.iterdir()) == before and len(store.list()) == 5
    # Not even when the link took the directory's place after the plan was made.
    with pytest.raises(NotAnObject, match="symbolic link"):
        retention.delete_checkpoint_except_foreign_files(store, name)
    with pytest.raises(NotAnObject, match="symbolic link"):
        store.delete(f"{name}/")
    with pytest.raises(NotAnObject, match="symbolic link"):
        store.create(f"{name}/{layout.report_file(0)}", b"")
    with pytest.raises(NotAnObject, match="symbolic link"):
        store.open_write(f"{name}/{layout.shard_file(7)}", 10)
    assert sorted(path.name for path in place.iterdir()) == before


def test_only_what_is_ours_by_name_is_deleted(store: PosixStore, capsys: pytest.CaptureFixture[str]) -> None:
    name, _ = put_checkpoint(store, 1), put_checkpoint(store, 2)
    Path(store.url, name, "notes.txt").write_text("mine")
    Path(store.url, name, "plots").mkdir()
    assert cli.main(["prune", store.url, "--latest", "1"]) == 1
    assert "no checkpoint has such files: notes.txt, plots/" in capsys.readouterr().out
    assert sorted(os.listdir(Path(store.url, name))) == ["notes.txt", "plots"]


def test_links_above_the_root_and_the_root_as_a_link_are_fine(store: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to("root")
    linked = PosixStore(str(tmp_path / "named"))
    names = [put_checkpoint(linked, seq) for seq in (1, 2)]
    pins.pin(linked, names[0])
    lease.Lease(linked, names[1], 10).release()
    pins.unpin(linked, names[0])
    assert retention.enforce(linked, Latest(1), SMALL_RUN).deleted == (names[0],)


@pytest.mark.parametrize("kind", [PosixStore, RestrictedStore])
@pytest.mark.parametrize("root", ["away", "away/run", "away/run/deep"])
def test_a_root_behind_a_link_to_nowhere_is_not_made(kind: type[PosixStore], root: str, tmp_path: Path) -> None:
    """What the link led to is unmounted: on the mount point below it nothing may be made."""
    (tmp_path / "away").symlink_to(tmp_path / "mount" / "of-user")
    with pytest.raises(FileExistsError):
        kind(str(tmp_path / root)).create(layout.RUN_FILE, b"{}")
    assert os.listdir(tmp_path) == ["away"]


@pytest.mark.parametrize("kind", [PosixStore, RestrictedStore])
def test_a_root_is_made_with_what_is_missing_above_it(kind: type[PosixStore], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    kind(str(tmp_path / "link/team/run")).create(layout.RUN_FILE, b"{}")
    assert (tmp_path / "real/team/run" / layout.RUN_FILE).read_bytes() == b"{}"


def test_pins_that_are_a_link_to_nowhere_are_not_no_pins(store: PosixStore) -> None:
    put_checkpoint(store, 1)
    Path(store.url, layout.PINS).symlink_to("unmounted")
    assert cli.main(["prune", store.url, "--latest", "1"]) == 1
    with pytest.raises(NotAnObject, match="pins is a symbolic link to unmounted, expected a directory"):
        retention.enforce(store, Latest(1), SMALL_RUN)


def test_a_lock_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert lock.read_agent_and_trainer(str(tmp_path / "lock")) is None


def test_a_hostile_root_costs_no_memory_and_no_time(store: PosixStore) -> None:
    """Everything at once, with a tenth of the memory that a reading without a bound would take in a second."""
    put_checkpoint(store, 1)
    for seq, put in enumerate((fifo, link_to_zeros, sparse), 2):
        path = Path(store.url, put_checkpoint(store, seq), layout.MANIFEST_FILE)
        path.unlink()
        put(path)
    link_to_zeros(Path(store.url, "epoch-000007.json"))
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod_kit.checkpoint.commands.cli", "verify", store.url],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        preexec_fn=limited,
    )
    assert done.returncode == 1 and done.stdout.count("INVALID") == 3, done


def limited() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
