"""What the hostile users do. Each is a function that a process of theirs runs, until it is ended, or for once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Callable, Dict, List

_PAUSE = 0.0005


def _entries(mine: Path) -> List[Path]:
    return sorted(mine.rglob("*"))


def _drawn(mine: Path, rng: Random) -> Path:
    """An entry: each of what lies at the top is as likely, however much is in it."""
    top = rng.choice(sorted(mine.iterdir()))
    return rng.choice([top, *_entries(top)])


def _victims(fsx: Path, rng: Random, was_file: bool) -> Path:
    """Something of the victims' in the place of an entry: for a file often a file, which reads as one."""
    victim = fsx / "victim"
    if was_file and rng.random() < 0.6:
        return victim / "thesis.tex"
    return rng.choice([victim, victim / "thesis.tex", victim / "run", victim / "parts", victim.parent.parent / "admin"])


def renames(mine: Path, fsx: Path, rng: Random) -> None:
    """Entries are exchanged for links to the victim's, and back, for ever."""
    entries = _entries(mine)
    while True:
        path = rng.choice(entries)
        aside = mine / f".aside-{os.getpid()}"
        with contextlib.suppress(OSError):
            was_file = path.is_file()
            os.rename(path, aside)
            with contextlib.suppress(OSError):
                os.symlink(_victims(fsx, rng, was_file), path)
            time.sleep(_PAUSE)
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.rename(aside, path)


def links(mine: Path, fsx: Path, rng: Random) -> None:
    for _ in range(4):
        path = _drawn(mine, rng)
        with contextlib.suppress(OSError):
            was_file = path.is_file()
            os.rename(path, f"{path}.was")
            os.symlink(_victims(fsx, rng, was_file), path)


def hard_links(mine: Path, fsx: Path, rng: Random) -> None:
    for path in rng.sample(_entries(mine), 3):
        with contextlib.suppress(OSError):
            os.rename(path, f"{path}.was")
            os.link(fsx / "victim" / "thesis.tex", path)


def fifos(mine: Path, fsx: Path, rng: Random) -> None:
    for path in rng.sample([path for path in _entries(mine) if path.is_file()], 3):
        with contextlib.suppress(OSError):
            path.unlink()
            os.mkfifo(path)


def modes(mine: Path, fsx: Path, rng: Random) -> None:
    entries = [mine, *_entries(mine)]
    while True:
        path = rng.choice(entries)
        with contextlib.suppress(OSError):
            path.chmod(rng.choice([0, 0o200, 0o444, 0o700, 0o777, 0o1777, 0o4755, 0o2755]))
        with contextlib.suppress(OSError):
            os.chown(path, -1, rng.choice([4001, 4002, 0]))
        time.sleep(_PAUSE)


def odd_names(mine: Path, fsx: Path, rng: Random) -> None:
    folders = [mine, *(path for path in _entries(mine) if path.is_dir())]
    odd = [
        b"a\n9 01CREAT",
        b"\x1b[31mred",
        b"\xff\xfe",
        b"x" * 255,
        b"-rf",
        b" ",
        b"seq-000009.step-0000000090.e1-dead",
    ]
    for name in odd:
        with contextlib.suppress(OSError):
            path = os.path.join(os.fsencode(rng.choice(folders)), name)
            os.mkdir(path) if rng.random() < 0.5 else os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    here = os.open(mine, os.O_RDONLY)
    for _ in range(300):
        with contextlib.suppress(OSError):
            os.mkdir(b"d" * 200, dir_fd=here)
            below = os.open(b"d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below


def garbage(mine: Path, fsx: Path, rng: Random) -> None:
    for path in rng.sample([path for path in _entries(mine) if path.is_file() and not path.is_symlink()], 4):
        with contextlib.suppress(OSError):
            path.chmod(0o644)
            kind = rng.randrange(4)
            if kind == 0:
                os.truncate(path, rng.choice([0, 1, 1 << 30]))
            elif kind == 1:
                path.write_bytes(rng.randbytes(rng.randint(1, 5000)))
            elif kind == 2:
                path.write_bytes(b"[" * 100_000)
            else:
                data = bytearray(path.read_bytes())
                for _ in range(min(len(data), 8)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                path.write_bytes(data)


def vanishing(mine: Path, fsx: Path, rng: Random) -> None:
    """Files are deleted and made again while they are read."""
    entries = [path for path in _entries(mine) if path.is_file()]
    while True:
        path = rng.choice(entries)
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            path.unlink()
            time.sleep(_PAUSE)
            path.write_bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.3 else data)


def false_names(mine: Path, fsx: Path, rng: Random) -> None:
    name = rng.choice(["slurmstepd: [4711.batch]", "mount-s3", "[kworker/0:1]", "hyperpod-kit checkpoint agent"])
    ctypes.CDLL(None).prctl(15, name[:15].encode(), 0, 0, 0)
    subprocess.run([name, "600"], executable="/usr/bin/sleep")


def binds(mine: Path, fsx: Path, rng: Random) -> None:
    """The victim's directories over one's own, in namespaces of one's own."""
    here = str(rng.choice([path for path in _entries(mine) if path.is_dir()]))
    script = 'mount --bind "$1" "$2"; ls "$2"; cat "$2"/* >"$3/stolen" 2>/dev/null; exec sleep 600'
    subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", str(fsx / "victim"), here, str(mine)], check=False)


DEEDS: Dict[str, Callable[[Path, Path, Random], None]] = {
    function.__name__: function
    for function in (renames, links, hard_links, fifos, modes, odd_names, garbage, vanishing, false_names, binds)
}
ONCE = frozenset({"links", "hard_links", "fifos", "odd_names", "garbage"})
"""Done before the command; the others go on while it runs."""
FUSE = "fuse"
"""A file system that answers nothing, over an entry: root's fusermount makes it for the user."""
