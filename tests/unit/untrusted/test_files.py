"""What others may have left where a file or a directory of ours belongs. As root the other user is a real one."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from hyperpod_kit.errors import CheckpointError, Untrusted
from hyperpod_kit.untrusted import files

OTHER = 4001
root_only = pytest.mark.needs("root")


def test_a_file_of_ours_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"words")
    assert files.read_small_regular_file(str(tmp_path / "file"), required_owner_uid=os.geteuid()) == b"words"


def place(path: Path, what: str) -> None:
    if what == "link":
        path.symlink_to("/dev/zero")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        path.write_bytes(b"x" * 101)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("link", "a symbolic link to /dev/zero"),
        ("fifo", "a fifo"),
        ("directory", "a directory"),
        ("socket", "a socket"),
        ("large", "has 101 bytes, expected at most 100"),
    ],
)
def test_what_is_no_small_file_is_refused_at_once(tmp_path: Path, what: str, words: str) -> None:
    place(tmp_path / "name", what)
    with pytest.raises(Untrusted, match=words):
        files.read_small_regular_file(str(tmp_path / "name"), 100)


def test_the_error_is_the_one_asked_for(tmp_path: Path) -> None:
    class Mine(CheckpointError, Untrusted):
        pass

    os.mkfifo(tmp_path / "name")
    with pytest.raises(Mine):
        files.read_small_regular_file(str(tmp_path / "name"), error=Mine)


@root_only
def test_a_file_of_somebody_else_is_refused_with_his_uid(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"words")
    os.chown(tmp_path / "file", OTHER, OTHER)
    with pytest.raises(Untrusted, match=f"belongs to uid {OTHER}, expected uid 0"):
        files.read_small_regular_file(str(tmp_path / "file"), required_owner_uid=0)


@pytest.mark.parametrize("what", ["link", "fifo", "directory", "socket", "large"])
def test_a_file_is_made_only_where_nothing_is(tmp_path: Path, what: str) -> None:
    place(tmp_path / "name", what)
    with pytest.raises(FileExistsError):
        files.create_exclusively(str(tmp_path / "name"))


def test_a_file_that_is_made_has_the_mode_asked_for(tmp_path: Path) -> None:
    os.close(files.create_exclusively(str(tmp_path / "name"), 0o644))
    assert stat.S_IMODE((tmp_path / "name").stat().st_mode) == 0o644


def test_a_directory_of_ours_is_made_kept_and_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "own"
    files.ensure_own_directory(str(path))
    path.chmod(0o777)
    files.ensure_own_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["fifo", "socket", "large"])
def test_what_is_no_directory_is_refused_with_what_it_is(tmp_path: Path, what: str) -> None:
    place(tmp_path / "own", what)
    with pytest.raises(Untrusted, match=f"not a directory of uid {os.geteuid()}"):
        files.ensure_own_directory(str(tmp_path / "own"))


def test_a_link_is_not_followed_and_what_it_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o755)
    (tmp_path / "own").symlink_to(tmp_path / "target")
    with pytest.raises(Untrusted):
        files.ensure_own_directory(str(tmp_path / "own"))
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o755


@root_only
def test_a_directory_of_somebody_else_is_refused_with_his_uid(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    os.chown(tmp_path / "own", OTHER, OTHER)
    with pytest.raises(Untrusted, match=f"of uid {OTHER}"):
        files.ensure_own_directory(str(tmp_path / "own"))


def test_a_file_that_a_command_line_names_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"words")
    (tmp_path / "link").symlink_to("file")
    assert files.read_file_or_pipe(str(tmp_path / "link")) == b"words"
    reading, writing = os.pipe()
    try:
        os.write(writing, b"from a pipe")
        os.close(writing)
        assert files.read_file_or_pipe(f"/dev/fd/{reading}") == b"from a pipe"
    finally:
        os.close(reading)


def test_a_pipe_that_a_command_line_names_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Untrusted, match="without a writer"):
        files.read_file_or_pipe(str(tmp_path / "fifo"))
    reading, writing = os.pipe()
    try:
        with pytest.raises(Untrusted, match=r"did not end within 0\.1 s"):
            files.read_file_or_pipe(f"/dev/fd/{reading}", seconds=0.1)
        os.write(writing, b"x" * 200)
        with pytest.raises(Untrusted, match="expected at most 100"):
            files.read_file_or_pipe(f"/dev/fd/{reading}", 100)
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(Untrusted, match="a directory, expected a regular file"):
        files.read_file_or_pipe(str(tmp_path))
