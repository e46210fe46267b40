"""A process whose working directory was on a mount that is lost still does what it is told by absolute paths.

Slurm starts a job in the directory that its owner submitted it from, most often one of a shared file system. When the
daemon of that mount dies and the mount comes back, the directory of the process stays dead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from tests.support.serving_fuse import serving_mount

REPOSITORY = Path(__file__).resolve().parents[3]

BEGINNING = """
import os, sys
os.chdir(sys.argv[1])
place = sys.argv[2]
print("there", flush=True)
sys.stdin.readline()
while True:
    try:
        os.stat(".")  # answered from a cache at first
    except OSError as err:
        print(err.errno)
        break
"""

CHANGES = """
from hyperpod_kit.untrusted import by_descriptor as by, files, owned_directory, walk
from hyperpod_kit.job.records.ledger import Ledger

def there(name):
    return os.path.join(place, name)

by.make_directory(there("one"))
by.make_directories(there("two/three"))
by.make_parents(there("four/five/file"))
by.write_text(by.resolve_parent(there("two/text")), "words")
by.write_bytes(there("two/bytes"), b"bytes")
with by.open_stream_for_writing(there("two/stream"), "w") as file:
    file.write("more")
by.touch(there("two/touched"))
by.copy_file(there("two/text"), there("two/copy"))
by.copy_tree(there("two"), there("tree"))
by.symlink(there("two"), there("link"))
by.link(there("two/text"), there("two/second"))
by.rename(there("two/second"), there("two/renamed"))
by.set_mode(there("two/text"), 0o600)
by.set_owner(there("two/text"), os.getuid(), os.getgid())
by.unlink(there("two/renamed"))
by.remove_directory(there("one"))
by.remove_tree(there("tree"))
os.close(walk.open_directory(there("two")))
os.close(walk.open_traversable(there("two")))
assert files.read_small_regular_file(there("two/text")) == b"words"
Ledger(place, "1", 0).append("attempt", nodes=[])
print("done")
"""

COMMANDS = """
import contextlib, io
from hyperpod_kit.cli import main
for line in ("checkpoint ls", "checkpoint verify", "checkpoint prune --latest 1", "job status --root"):
    words = line.split()
    with contextlib.redirect_stdout(io.StringIO()):
        code = main.run_command_line([*words, place] if len(words) != 4 else [*words[:2], place, *words[2:]])
    print(line, code)
"""

TRAINER = """
import torch
from hyperpod_kit.checkpoint import Manager, Restored, State
state = State(torch.nn.Linear(3, 3))
with Manager(place) as manager:
    manager.restore(state)
    assert manager.save(1, state).wait("durable", 60)
with Manager(place) as manager:
    assert isinstance(manager.restore(state), Restored)
print("done")
"""


@pytest.fixture
def dead_directory(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    # The kernel asks the daemon who may enter the directory, as it does for a share.
    with serving_mount(tmp_path / "mount", options="allow_other,default_permissions") as daemon:
        yield tmp_path / "mount", daemon


def run(
    program: str, dead_directory: tuple[Path, subprocess.Popen[str]], place: Path, shm: Path | None = None
) -> list[str]:
    """What a program prints that was in a directory before its mount died; 107 first, ENOTCONN."""
    mount, daemon = dead_directory
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **({"HPK_SHM_DIR": str(shm)} if shm else {})}
    script = place.with_suffix(".py")  # Python imports what is in its working directory only for -c and -m
    script.write_text(BEGINNING + program)
    with subprocess.Popen(
        [sys.executable, str(script), str(mount), str(place)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(20)
        output, errors = process.communicate("\n", timeout=200)
    assert process.returncode == 0, errors
    assert output.split()[0] == "107", "the directory is dead"
    return output.splitlines()[1:]


@pytest.mark.needs("root", "fuse")
def test_files_and_directories_are_changed(dead_directory: tuple[Path, subprocess.Popen[str]], tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    assert run(CHANGES, dead_directory, place) == ["done"]


@pytest.mark.needs("root", "fuse")
def test_a_trainer_saves_and_restores_and_commands_read(
    dead_directory: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    root, shm = tmp_path / "root", tmp_path / "shm"
    shm.mkdir()
    printed = run(TRAINER + COMMANDS, dead_directory, root, shm)
    assert printed == [
        "done",
        "checkpoint ls 0",
        "checkpoint verify 0",
        "checkpoint prune --latest 1 0",
        "job status --root 0",
    ]
    assert not list(shm.iterdir())
