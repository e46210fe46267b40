"""What a command writes for its user goes nowhere else, whatever another has laid in its place or on the way there."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore  # noqa: E402
from hyperpod_kit.cli.main import run_command_line as run_command  # noqa: E402
from hyperpod_kit.cli.views import html_page  # noqa: E402
from hyperpod_kit.storage.plan import calibration, seeds  # noqa: E402
from tests.hostile.acts.ground import own  # noqa: E402
from tests.hostile.users import ATTACKER, ROOT, VICTIM, as_user, busy_as, place  # noqa: E402
from tests.support.rows import share  # noqa: E402
from tests.unit.checkpoint.small_checkpoint import put_checkpoint  # noqa: E402

pytestmark = [ROOT, pytest.mark.timeout(300)]

UNDECLARED = 70
"""The exit code of an error that nobody has declared."""

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

SHAPES = ("link to a directory", "link to a file", "link above", "fifo", "file of another", "directory of another")
COMMANDS: Dict[str, str] = {
    "data index": "data index {own}/data --out {target}",
    "data merge": "data merge {own}/data {target}",
    "checkpoint get": "checkpoint get {own}/run model.w --out {target}",
    "checkpoint export, torch": "checkpoint export {own}/run --to torch --out {target}",
    "checkpoint export, safetensors": "checkpoint export {own}/run --to safetensors --out {target}",
    "checkpoint export, dcp": "checkpoint export {own}/run --to dcp --out {target}",
    "storage usage, state": "storage usage {own}/data --state {target}",
    "storage usage, page": "storage usage {own}/data --state {own}/state --html {target}",
    "job status, page": "job status --root {own}/run --html {target}",
    "storage tier": "storage tier {own}/tiered --older-than 1s --keep 1 --to {target}",
}
"""Lines in which {own} is the victim's directory and {target} lies in one that another may write to."""

FUNCTIONS: Dict[str, Callable[[Path], object]] = {
    "storage bench, calibration": lambda target: calibration.save(seeds.CHECKPOINTS, target),
    "validate-mounts, page": lambda target: html_page.write_html_page(
        target, html_page.render_html_page("title", "<p>body</p>")
    ),
}
"""What writes for commands that need a cluster, or a mount of their own for minutes."""


class Place(NamedTuple):
    """`own`: the victim's, which nobody else may enter; `open`: the attacker's, in which everybody may write."""

    own: Path
    open: Path


def write(command: str, mine: Path, target: Path) -> int:
    """The command's exit code, in this process."""
    if command in FUNCTIONS:
        FUNCTIONS[command](target)
        return 0
    return run_command(COMMANDS[command].format(own=mine, target=target).split())


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The victim's directory. Each command has run here once: a child that has become a user may not be able to import
    any more, where root's home has the interpreter."""
    top = tmp_path_factory.mktemp("pattern")
    mine = top / "own"
    (mine / "data").mkdir(parents=True)
    for name in ("thesis", "tiered"):
        (mine / name).mkdir()
    (mine / "thesis" / "chapter").write_text("irreplaceable\n")
    (mine / "data" / "a.jsonl").write_text('{"text": "a line"}\n' * 20)
    torch.set_num_threads(1)
    torch.save({"w": torch.arange(4.0)}, top / "1.pt")
    import_checkpoint(top / "1.pt", "torch", mine / "run")
    for seq in (1, 2, 3):
        put_checkpoint(PosixStore(str(mine / "tiered")), seq)
    shutil.copytree(mine, top / "warm")
    for number, command in enumerate((*COMMANDS, *FUNCTIONS)):
        assert write(command, top / "warm", top / f"out{number}.npy") == 0, command
    return mine


@pytest.fixture
def shared(pattern: Path) -> Iterator[Place]:
    with place(0o755) as top:
        made = Place(top / "own", top / "open")
        shutil.copytree(pattern, made.own)
        own(made.own, VICTIM, 0o700)
        made.open.mkdir()
        os.chown(made.open, ATTACKER, ATTACKER)
        made.open.chmod(0o777)
        yield made


def thesis(shared: Place) -> Dict[str, str]:
    """Everything of the victim's that no command has to do with."""
    facts = {}
    for path in (shared.own / "thesis", *sorted((shared.own / "thesis").rglob("*"))):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        facts[str(path)] = f"{stat.filemode(status.st_mode)} {status.st_uid} {status.st_nlink} {digest}"
    return facts


def lay(shape: str, target: Path, lies: Path) -> None:
    os.umask(0)
    if shape == "link to a directory":
        target.symlink_to(lies)
    elif shape == "link to a file":
        target.symlink_to(lies / "chapter")
    elif shape == "link above":
        target.parent.symlink_to(lies)
    elif shape == "fifo":
        os.mkfifo(target, 0o666)
    elif shape == "file of another":
        target.write_text("his\n")
    else:
        target.mkdir(mode=0o777)


def run(command: str, shared: Place, target: Path) -> int:
    """Its exit code as the victim's."""

    def work() -> None:
        os.environ.update(HOME=str(shared.own), AWS_EC2_METADATA_DISABLED="true")
        os.chdir(shared.own)
        try:
            code = write(command, shared.own, target)
        except OSError:
            code = 1
        os._exit(code)

    return as_user(VICTIM, work)


ROWS = [(command, shape) for command in (*COMMANDS, *FUNCTIONS) for shape in SHAPES]


@pytest.mark.parametrize(("command", "shape"), share(ROWS, 24))
def test_nothing_is_written_into_what_another_has_laid(command: str, shape: str, shared: Place) -> None:
    before, target = thesis(shared), shared.open / "made" / "out.npy"

    def laid() -> None:
        if shape != "link above":
            target.parent.mkdir()
            target.parent.chmod(0o777)
        lay(shape, target, shared.own / "thesis")

    assert as_user(ATTACKER, laid) == 0
    his = os.open(target, os.O_RDONLY | os.O_NONBLOCK) if shape in ("fifo", "file of another") else -1
    code = run(command, shared, target)
    assert code not in (UNDECLARED, -signal.SIGKILL)
    assert thesis(shared) == before
    if shape.startswith("link"):
        assert code != 0 or (shape != "link above" and not target.is_symlink()), "it was followed"
    if his >= 0:
        assert os.read(his, 100) == (b"his\n" if shape == "file of another" else b"")
        os.close(his)


@pytest.mark.parametrize("command", share((*COMMANDS, *FUNCTIONS), 4))
def test_names_that_are_exchanged_meanwhile_lead_nowhere(command: str, shared: Place) -> None:
    before = thesis(shared)
    with busy_as(ATTACKER, _EXCHANGES, str(shared.open), str(shared.own / "thesis")):
        for turn in range(4):
            assert run(command, shared, shared.open / f"run{turn}" / "out.npy") != UNDECLARED
            assert run(command, shared, shared.open / f"out{turn}.npy") != UNDECLARED
    assert thesis(shared) == before
