"""What is made, written, moved or removed at a path stays there, whatever another lays on the way or in its place."""

from __future__ import annotations

import contextlib
import os
import shutil  # noqa: F401  # a child that has become a user may not be able to import any more
import stat
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor, identity, walk
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, busy_as, place
from tests.support.rows import full

pytestmark = ROOT


@pytest.fixture
def shared() -> Iterator[Path]:
    """A scratch directory of mode 0777 without the sticky bit, and the victim's home beside it."""
    with place() as top:
        home = top / "home"
        (home / "mine" / "parts").mkdir(parents=True)
        for name in ("file", "parts/notes"):
            (home / "mine" / name).write_text(f"irreplaceable {name}\n")
        for path in (home, *home.rglob("*")):
            os.chown(path, VICTIM, VICTIM)
        home.chmod(0o700)
        (top / "part").write_text("written elsewhere\n")
        (top / "scratch").mkdir()
        (top / "scratch").chmod(0o777)
        yield top


def everything(top: Path) -> dict[str, tuple[int, int, str]]:
    facts = {}
    for path in sorted((top / "home").rglob("*")):
        status = path.lstat()
        facts[str(path)] = (status.st_mode, status.st_uid, path.read_text() if path.is_file() else "")
    return facts


def part_beside(path: Path) -> Path:
    """The fixture's own file: a file of the machine would be gone where a change is not refused."""
    return path.parents[1] / "part"


CHANGES: dict[str, Callable[[Path], object]] = {
    "make a directory": lambda path: by_descriptor.make_directory(path / "new"),
    "make directories": lambda path: by_descriptor.make_directories(path / "a/b"),
    "make parents": lambda path: by_descriptor.make_parents(path / "a/b"),
    "remove a directory": lambda path: by_descriptor.remove_directory(path / "empty"),
    "remove a tree": lambda path: by_descriptor.remove_tree(path / "parts"),
    "copy a tree": lambda path: by_descriptor.copy_tree("/etc/default", path / "new"),
    "set times": lambda path: by_descriptor.set_times(path / "file", (1.0, 1.0)),
    "unlink": lambda path: by_descriptor.unlink(path / "file"),
    "rename from": lambda path: by_descriptor.rename(path / "file", path.parent / "moved"),
    "rename to": lambda path: by_descriptor.rename("/nothing", path / "file"),
    "link": lambda path: by_descriptor.link(path / "file", path / "other"),
    "symlink": lambda path: by_descriptor.symlink("x", path / "new"),
    "mode": lambda path: by_descriptor.set_mode(path / "file", 0o666),
    "owner": lambda path: by_descriptor.set_owner(path / "file", ATTACKER, ATTACKER),
    "open": lambda path: os.close(
        by_descriptor.open_own_or_root_file(path / "file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    ),
    "write bytes": lambda path: by_descriptor.write_bytes(path / "file", b"x"),
    "append": lambda path: by_descriptor.open_stream_for_writing(path / "file", "a").close(),
    "touch": lambda path: by_descriptor.touch(path / "new"),
    "copy a file": lambda path: by_descriptor.copy_file(part_beside(path), path / "file"),
    "replace whole": lambda path: atomic_file.write_atomically(path / "file", b"x"),
    "take a place": lambda path: atomic_file.move_into_place(part_beside(path), path / "file"),
}
"""What is changed below a directory that the attacker has exchanged for a link into the victim's home."""


@pytest.mark.parametrize("user", [0, *full(VICTIM)])
@pytest.mark.parametrize("change", CHANGES)
def test_no_change_goes_through_a_link_of_another(change: str, user: int, shared: Path) -> None:
    before = everything(shared)
    assert as_user(ATTACKER, lambda: os.symlink(shared / "home/mine", shared / "scratch/run")) == 0

    def refused() -> None:
        with pytest.raises(Untrusted, match=f"symbolic link of uid {ATTACKER}|is not there"):
            try:
                CHANGES[change](shared / "scratch/run")
            except FileNotFoundError as err:
                # The side that leads elsewhere was asked first, and has nothing to move.
                raise Untrusted("is not there") from err

    assert as_user(user, refused) == 0
    assert everything(shared) == before


WRITES = ("open", "write bytes", "append", "copy a file")


@pytest.mark.parametrize("user", [0, *full(VICTIM)])
@pytest.mark.parametrize("shape", ["link", "fifo", "file of another", "second name", "directory of another"])
@pytest.mark.parametrize("change", WRITES)
def test_nothing_is_written_into_what_another_has_laid(change: str, shape: str, user: int, shared: Path) -> None:
    before, target = everything(shared), shared / "scratch/run"

    def lay() -> None:
        os.umask(0)
        target.mkdir(mode=0o777)
        if shape == "link":
            os.symlink(shared / "home/mine/file", target / "file")
        elif shape == "fifo":
            os.mkfifo(target / "file", 0o666)
        elif shape == "directory of another":
            (target / "file").mkdir()
        elif shape == "file of another":
            (target / "file").write_text("his\n")
            (target / "file").chmod(0o666)

    assert as_user(ATTACKER, lay) == 0
    if shape == "second name":
        # The kernel keeps a user from naming what is not his where fs.protected_hardlinks says so: root names it here.
        os.link(shared / "home/mine/file", target / "file")

    def refused() -> None:
        with pytest.raises((Untrusted, IsADirectoryError, PermissionError)):
            CHANGES[change](target)

    assert as_user(user, refused) == 0
    assert everything(shared) == before
    if shape == "file of another":
        assert (target / "file").read_text() == "his\n"


def test_a_directory_that_is_there_is_ours_or_refused(shared: Path) -> None:
    def lay() -> None:
        os.umask(0)
        (shared / "scratch/index").mkdir(mode=0o777)

    assert as_user(ATTACKER, lay) == 0

    def refused() -> None:
        with pytest.raises(Untrusted, match=f"uid {ATTACKER}"):
            by_descriptor.make_directories(shared / "scratch/index")
        with pytest.raises(Untrusted, match=f"uid {ATTACKER}"):
            by_descriptor.copy_tree("/etc/default", shared / "scratch/index", exist_ok=True)

    for user in (0, VICTIM):
        assert as_user(user, refused) == 0
    assert list((shared / "scratch/index").iterdir()) == []


_EXCHANGES = """
import os, sys
place, lies = sys.argv[1:]
print("begun", flush=True)
while True:
    for name in os.listdir(place):
        try:
            os.rename(place + "/" + name, place + "/.aside")
            os.symlink(lies, place + "/" + name)
            os.unlink(place + "/" + name)
            os.rename(place + "/.aside", place + "/" + name)
        except OSError:
            pass
"""


@pytest.mark.parametrize("user", [0, *full(VICTIM)])
def test_a_loop_of_exchanges_leads_nowhere(user: int, shared: Path) -> None:
    """The directory is open to all, and another exchanges what lies in it for links to the victim's home."""
    before, target = everything(shared), shared / "scratch"

    def change_all() -> None:
        for turn in range(60):
            for change in CHANGES.values():
                with contextlib.suppress(OSError, Untrusted):
                    by_descriptor.make_directories(target / f"run{turn % 3}/parts")
                with contextlib.suppress(OSError, Untrusted):
                    change(target / f"run{turn % 3}")

    with busy_as(ATTACKER, _EXCHANGES, str(target), str(shared / "home/mine")):
        assert as_user(user, change_all) == 0
    assert everything(shared) == before


ODD = "odd\nname\x1b[31m"


def test_in_a_place_of_ones_own_everything_works(tmp_path: Path) -> None:
    top = tmp_path / ODD
    by_descriptor.make_directories(top / "a/b")
    by_descriptor.make_directories(top / "a/b")
    by_descriptor.make_parents(top / "c/file")
    by_descriptor.make_directory(top / "c/d", 0o700)
    with pytest.raises(FileExistsError):
        by_descriptor.make_directory(top / "c/d")
    by_descriptor.write_text(top / "c/file", "long text\n")
    by_descriptor.write_bytes(top / "c/file", b"short\n")
    with by_descriptor.open_stream_for_writing(top / "c/file", "a") as out:
        out.write("more\n")
    with pytest.raises(FileExistsError):
        by_descriptor.open_stream_for_writing(top / "c/file", "xb")
    with pytest.raises(FileExistsError):
        by_descriptor.make_directories(top / "c/file")
    with pytest.raises(NotADirectoryError):
        by_descriptor.make_parents(top / "c/file/x")
    assert (top / "c/file").read_text() == "short\nmore\n"
    by_descriptor.set_mode(top / "c/file", 0o640)
    by_descriptor.set_owner(top / "c/file", 0, 0)
    by_descriptor.symlink("file", top / "c/mine")
    by_descriptor.write_text(top / "c/mine", "by a link of one's own\n")
    by_descriptor.copy_file(top / "c/file", top / "c/copy")
    assert (top / "c/copy").read_text() == "by a link of one's own\n"
    assert stat.S_IMODE((top / "c/copy").stat().st_mode) == 0o640
    by_descriptor.link(top / "c/copy", top / "c/name")
    by_descriptor.rename(top / "c/name", top / "c/renamed")
    by_descriptor.copy_tree(top / "c", top / "e", symlinks=True)
    assert sorted(os.listdir(top / "e")) == ["copy", "d", "file", "mine", "renamed"]
    by_descriptor.unlink(top / "c/mine")
    by_descriptor.unlink(top / "c/mine", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        by_descriptor.unlink(top / "c/mine")
    by_descriptor.remove_directory(top / "c/d")
    by_descriptor.remove_tree(top / "e")
    by_descriptor.remove_tree(top / "e", ignore_errors=True)
    with pytest.raises(FileNotFoundError):
        by_descriptor.remove_tree(top / "e")
    by_descriptor.touch(top / "new")
    by_descriptor.touch(top / "new")
    assert sorted(os.listdir(top)) == ["a", "c", "new"]


def test_a_directory_that_may_be_filled_and_not_listed_will_do(shared: Path) -> None:
    (shared / "scratch").chmod(0o733)

    def fill() -> None:
        by_descriptor.write_text(shared / "scratch/note", "text\n")
        atomic_file.write_atomically(shared / "scratch/note", b"new\n")

    assert as_user(VICTIM, fill) == 0
    assert (shared / "scratch/note").read_text() == "new\n"


def test_a_loop_of_ones_own_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="symbolic links"):
        by_descriptor.write_text(tmp_path / "a", "x")
    with pytest.raises(OSError, match="symbolic links"):
        walk.open_traversable(str(tmp_path / "a"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_on_a_file_system_with_one_owner_for_all_that_owner_is_ours(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An access point makes every file its own user's: the mark of this is a file that we have made there ourselves."""
    folder = shared / "scratch"
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.chown(folder, ATTACKER, ATTACKER)
        with pytest.raises(Untrusted, match=f"uid {ATTACKER}"):
            identity.require_user_owned(os.fstat(handle), str(folder), handle)
        assert identity.probe_uid_of_created_files(handle) == 0 and os.listdir(folder) == []
        made = os.open

        def given_away(*words: object, **options: object) -> int:
            new: int = made(*words, **options)  # type: ignore[arg-type]
            os.fchown(new, ATTACKER, ATTACKER)
            return new

        # As an access point does; the real one is a mount of a rehearsal.
        monkeypatch.setattr(os, "open", given_away)
        identity.require_user_owned(os.fstat(handle), str(folder), handle)
    finally:
        monkeypatch.undo()
        os.close(handle)
