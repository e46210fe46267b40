"""A file is the old one or the new one, whatever happens while it is written."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.system import atomic_file


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_replaced_and_nothing_stays_beside_it(tmp_path: Path, umask: None) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    atomic_file.write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and mode(path) == 0o640, "as of any new file"
    for bits in (0o400, 0o666):
        atomic_file.write_atomically(str(path), b"again", bits, durable=True)
        assert path.read_bytes() == b"again" and mode(path) == bits
    assert os.listdir(tmp_path) == ["file"]


def test_in_the_present_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    atomic_file.write_atomically("file", b"here")
    assert (tmp_path / "file").read_bytes() == b"here"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "file").symlink_to("kept")
    atomic_file.write_atomically(tmp_path / "file", b"new", 0o644)
    assert not (tmp_path / "file").is_symlink() and (tmp_path / "kept").read_text() == "kept"


@pytest.mark.needs("root")
def test_the_owner_has_it_before_anything_is_in_it(tmp_path: Path) -> None:
    with atomic_file.open_for_atomic_replace(tmp_path / "file", 0o400, owner=(4711, 4712)) as stream:
        found = os.fstat(stream.fileno())
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4711, 4712, 0o400)
        stream.write(b"secret")
    found = (tmp_path / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_size) == (4711, 4712, 6)


def test_what_fails_on_the_way_leaves_the_old_one_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_file.open_for_atomic_replace(path) as stream:
        stream.write(b"half")
        assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 2
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_what_was_written_can_be_read_before_it_counts(tmp_path: Path) -> None:
    with atomic_file.open_for_atomic_replace(tmp_path / "file") as stream:
        stream.write(b"whole")
        stream.seek(0)
        assert stream.read() == b"whole" and not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_killed_writer_leaves_the_old_file_and_a_name_that_says_whose_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    program = (
        "import os, signal, sys; from hyperpod_kit.system import atomic_file\n"
        "with atomic_file.open_for_atomic_replace(sys.argv[1]) as stream:\n"
        "    stream.write(b'new')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "file")])
    assert killed.wait(30) == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old"
    (left,) = set(os.listdir(tmp_path)) - {"file"}
    assert left.startswith(f"file.{killed.pid}.") and left.endswith(".partial")


def test_by_the_descriptor_of_a_directory(tmp_path: Path) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    folder = os.open(there, os.O_RDONLY | os.O_DIRECTORY)
    try:
        there.rename(gone)
        there.mkdir()
        atomic_file.write_atomically_in_directory(folder, "file", b"new")
        assert os.listdir(gone) == ["file"] and os.listdir(there) == []
        os.fstat(folder)  # the caller's: it is open still
    finally:
        os.close(folder)
