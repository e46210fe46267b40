"""A step in a container (pyxis: `srun --container-image`): the warnings before it starts, how a rank's wrapper finds a
Python inside, and after how many attempts it is certain that no rank will ever begin.

`job run` itself is outside, on the batch host.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.system.mountinfo import is_same_or_below, mount_containing_path, read_mountinfo

PYTHONS = ("python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3")
"""Where images have a Python, best first; PATH is the image's own."""

OLDEST = (3, 8)

INSIDE = "--inside-container"
"""The option that tells the wrapper that it runs in a container."""

TRIES = 2
"""Attempts in a row in which no rank has begun: an import from a registry may fail once."""

FSTABS = ("/etc/enroot/mounts.d", "~/.config/enroot/mounts.d")
"""Directories of the mounts that an administrator or the user has added to every container, in enroot's own format."""

_FIND = """\
for python in {pythons}; do
    "$python" -I -S -c 'import sys; sys.exit(sys.version_info < {oldest})' 2>/dev/null && exec "$python" -I -S "$@"
done
echo "hyperpod-kit: this container has no Python {words} or newer (looked for: {pythons})," \
    "so no rank can start; name one that is in the image: job run --container-python PATH" >&2
exit {code}"""

_KEPT = ("image", "name", "mounts", "workdir", "unshare")


class Container(NamedTuple):
    """The container that srun is to start, by its options or pyxis's variables. `mounts`: paths inside; `python`: its
    Python, "" where none is named."""

    mounts: Tuple[str, ...] = ()
    workdir: str = ""
    unshare: Tuple[str, ...] = ()
    python: str = ""

    def command_running_python_inside(self, python_arguments: Sequence[str]) -> List[str]:
        """Return the command that runs a Python inside with these arguments."""
        candidates: Sequence[str] = PYTHONS
        if self.python:
            candidates = (self.python,)
        pythons = " ".join(map(shlex.quote, candidates))
        script = _FIND.format(
            pythons=pythons, oldest=OLDEST, code=int(ExitCode.NO_PYTHON), words=".".join(map(str, OLDEST))
        )
        return ["/bin/sh", "-c", script, "hyperpod-kit", *python_arguments]

    def doubts(
        self, needed: Sequence[str], command: Sequence[str], program: str, fstabs: Sequence[str] = FSTABS
    ) -> Iterator[str]:
        """Yield what will probably go wrong inside, each with what to type. `needed`: the directories of checkpoints
        and records; `program`: ours, as the wrapper starts it."""
        paths_in_container = (*self.mounts, *_targets_in_enroot_fstabs(fstabs))
        if not covered(program, paths_in_container):
            kit_directory = program[: program.rfind("/hyperpod_kit/")]
            yield (
                f"{kit_directory} is in none of the container's mounts, and each rank is started through it; "
                f"add --container-mounts={kit_directory}:{kit_directory}:ro"
            )
        for path in needed:
            if not covered(path, paths_in_container):
                yield (
                    f"{path} is in none of the container's mounts: a rank that does not find it there does not start; "
                    f"add --container-mounts={top(path)}:{top(path)}"
                )
        if not self.workdir:
            files = [word for word in command if not word.startswith(("-", "/")) and os.path.isfile(word)]
            if files:
                yield (
                    f"the container does not start in {os.getcwd()}, so {files[0]} may not be found; "
                    f"add --container-workdir={os.getcwd()}, below a mount"
                )
        if "ipc" in self.unshare:
            yield (
                "--container-unshare=ipc: captures in memory are lost with the container; the job resumes from storage"
            )


def container_from_options_or_env(
    srun_args: Sequence[str], env: Mapping[str, str], image_python: str = ""
) -> Optional[Container]:
    """Return the container of a step; None when it has none. Options win over PYXIS_CONTAINER_*, as in pyxis."""
    given = {
        name: env[f"PYXIS_CONTAINER_{name.upper()}"] for name in _KEPT if env.get(f"PYXIS_CONTAINER_{name.upper()}")
    }
    given.update(_options(srun_args))
    if not given.get("image") and not given.get("name"):
        return None
    mounts = tuple(_target(mount) for mount in given.get("mounts", "").split(",") if mount)
    return Container(mounts, given.get("workdir", ""), tuple(given.get("unshare", "").split(",")), image_python)


def covered(path: str, places: Sequence[str]) -> bool:
    """Return whether `path` is one of the places or below one."""
    return any(is_same_or_below(path, directory) for directory in places)


def top(path: str) -> str:
    """Return the first directory of a path, where file systems are mounted."""
    return "/" + path.strip("/").split("/")[0]


def _options(srun_args: Sequence[str]) -> Dict[str, str]:
    container_options: Dict[str, str] = {}
    for number, word in enumerate(srun_args):
        name, equals, value = word.partition("=")
        key = name[len("--container-") :]
        if not name.startswith("--container-") or key not in _KEPT:
            continue
        if not equals:
            value = " ".join(srun_args[number + 1 : number + 2])
        if key == "mounts" and key in container_options:
            # pyxis joins the lists of several options.
            value = f"{container_options[key]},{value}"
        container_options[key] = value
    return container_options


def _target(mount: str) -> str:
    """Return the path inside, of SRC[:DST[:FLAGS]]."""
    parts = mount.split(":")
    if len(parts) > 1 and parts[1].startswith("/"):
        return os.path.normpath(parts[1])
    return os.path.normpath(parts[0])


def _targets_in_enroot_fstabs(fstab_directories: Sequence[str]) -> Iterator[str]:
    for folder in map(os.path.expanduser, fstab_directories):
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".fstab"))
        except OSError:  # not there, or another user's home
            continue
        for name in names:
            try:
                lines = Path(folder, name).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for fstab_fields in map(str.split, lines):
                if len(fstab_fields) > 1 and fstab_fields[1].startswith("/"):
                    yield fstab_fields[1]


def is_at_or_below_mount_except_root(path: str, mountinfo: str = "/proc/self/mountinfo") -> bool:
    """Return whether something is mounted at `path` or at a directory above it other than `/`. Asks no file system but
    a tmpfs, such as a container's own /tmp, which has to hold the path. True where the mounts cannot be read."""
    try:
        nearest = mount_containing_path(read_mountinfo(mountinfo), path)
    except OSError:
        return True
    if nearest is None or nearest.path == "/":
        return False
    return nearest.fs_type != "tmpfs" or os.path.lexists(path)
