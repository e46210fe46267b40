"""A directory of ours below one that another may write to: what he has laid there is neither followed, filled nor
emptied, whatever he does meanwhile."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # a child that has become a user may not be able to import any more
import contextlib
import encodings.ascii  # noqa: F401
import os
import stat
from pathlib import Path
from typing import Callable, Iterator

import pytest

from hyperpod_kit.data.bulk import stage as staging
from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.fan_out import listing
from hyperpod_kit.job.fan_out.destination import Destination
from hyperpod_kit.untrusted import owned_directory
from hyperpod_kit.untrusted.owned_directory import OwnedDirectory
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, busy_as, place
from tests.support.rows import full

pytestmark = ROOT


@pytest.fixture
def shared() -> Iterator[Path]:
    """A scratch directory that everybody may write to, and the victim's home beside it."""
    with place() as top:
        home = top / "home"
        (home / "thesis" / "parts" / "deep").mkdir(parents=True)
        for name in ("lock", "journal", "chapter.tex", "parts/deep/notes"):
            (home / "thesis" / name).write_text(f"irreplaceable {name}\n")
        for path in (home, *home.rglob("*")):
            os.chown(path, VICTIM, VICTIM)
        home.chmod(0o700)
        scratch = top / "scratch"
        scratch.mkdir()
        scratch.chmod(0o1777)
        source = top / "model"
        source.mkdir()
        (source / "config.json").write_text("{}")
        (source / "modeling.py").write_text("print('good')\n")
        (source / "modeling.py").chmod(0o6755)
        yield top


def thesis(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top / "home")): path.read_text()
        for path in (top / "home").rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def fan_out(source: Path, target: Path) -> None:
    plan = listing.plan_of(str(source), listing.listed(str(source)))
    copy = Destination(str(target), plan)
    for number, piece in enumerate(plan.pieces):
        copy.write_chunk_and_finish_file(number, memoryview((source / plan.files[piece.file].path).read_bytes()))
    assert copy.complete


def stage(source: Path, target: Path) -> None:
    assert staging.stage(str(source), str(target)).files == 2


COMMANDS = [(fan_out, ".hpk-fan-out"), (stage, ".hpk-stage")]


@pytest.mark.parametrize(("command", "own"), COMMANDS)
@pytest.mark.parametrize("shape", [*full("directory", "own", "lock"), "link to it", "directory of another, closed"])
def test_what_another_has_laid_there_is_refused(
    command: Callable[[Path, Path], None], own: str, shape: str, shared: Path
) -> None:
    before, target = thesis(shared), shared / "scratch" / "llama"

    def lay() -> None:
        os.umask(0)
        if shape == "link to it":
            return os.symlink(shared / "home" / "thesis", target)
        target.mkdir(mode=0o755 if shape.endswith("closed") else 0o777)
        if shape == "directory":
            os.symlink(shared / "home" / "thesis", target / own)
        elif shape != "directory of another, closed":
            (target / own).mkdir(mode=0o777)
        if shape == "lock":
            os.symlink(shared / "home" / "thesis" / "lock", target / own / "lock")
        return None

    def refused() -> None:
        with pytest.raises(Untrusted):
            command(shared / "model", target)

    assert as_user(ATTACKER, lay) == 0
    assert as_user(VICTIM, refused) == 0
    assert thesis(shared) == before


@pytest.mark.parametrize(("command", "own"), COMMANDS)
def test_what_is_laid_into_ones_own_directory_is_refused(
    command: Callable[[Path, Path], None], own: str, shared: Path
) -> None:
    """The directory is the victim's, and open to all: what another puts into it leads nowhere."""
    before, target = thesis(shared), shared / "scratch" / "llama"

    def open_to_all() -> None:
        os.umask(0)
        target.mkdir(mode=0o777)

    assert as_user(VICTIM, open_to_all) == 0
    assert as_user(ATTACKER, lambda: os.symlink(shared / "home" / "thesis", target / own)) == 0

    def refused() -> None:
        with pytest.raises(Untrusted):
            command(shared / "model", target)

    assert as_user(VICTIM, refused) == 0
    assert thesis(shared) == before


@pytest.mark.parametrize(("command", "own"), COMMANDS)
def test_in_a_place_of_ones_own_they_work_twice(command: Callable[[Path, Path], None], own: str, shared: Path) -> None:
    target = shared / "scratch" / "mine" / "llama"
    for _ in range(2):
        assert as_user(VICTIM, lambda: command(shared / "model", target)) == 0
    assert (target / "modeling.py").read_text() == "print('good')\n"
    # Another user's file never becomes a program that acts as the one who copied it.
    assert not (target / "modeling.py").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert stat.S_IMODE((target / own).stat().st_mode) == 0o700


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


def test_a_tree_is_emptied_while_its_names_are_exchanged(shared: Path) -> None:
    """The victim's directory is open to all, and another exchanges its names for links to the victim's home."""
    before, target = thesis(shared), shared / "scratch" / "open"

    def fill_and_clear() -> None:
        with OwnedDirectory.open_or_make(str(target)) as tree:
            for turn in range(100):
                for number in range(4):
                    with contextlib.suppress(OSError, Untrusted):
                        os.close(tree.open(f"d{number}/e/{turn}", os.O_WRONLY | os.O_CREAT, make=True))
                for name in tree.names():
                    with contextlib.suppress(OSError):
                        tree.remove_file_or_tree(name)

    def make() -> None:
        os.umask(0)
        target.mkdir(mode=0o777)

    assert as_user(VICTIM, make) == 0
    with busy_as(ATTACKER, _EXCHANGES, str(target), str(shared / "home" / "thesis")):
        assert as_user(VICTIM, fill_and_clear) == 0
    assert thesis(shared) == before


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("deep", dir_fd=handle)
    here = os.open("deep", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with OwnedDirectory.open_or_make(str(tmp_path)) as tree:
        tree.remove_file_or_tree("deep")
    assert os.listdir(tmp_path) == []
    owned_directory.remove_file_or_tree("deep", handle)
    os.close(handle)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", "a/../b", "", "."])
def test_names_stay_below(name: str, tmp_path: Path) -> None:
    with OwnedDirectory.open_or_make(str(tmp_path)) as tree:
        for act in (tree.remove_file_or_tree, tree.status, lambda name: tree.open(name, os.O_RDONLY)):
            with pytest.raises(ValueError, match="not a name below"):
                act(name)


def test_a_file_with_another_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    os.link(tmp_path / "kept", tmp_path / "log")
    os.mkfifo(tmp_path / "fifo")
    with OwnedDirectory.open_or_make(str(tmp_path)) as tree:
        with pytest.raises(Untrusted, match="2 names"):
            tree.open("log", os.O_WRONLY | os.O_APPEND)
        with pytest.raises(Untrusted, match="regular file"):
            tree.open("fifo", os.O_RDONLY)
