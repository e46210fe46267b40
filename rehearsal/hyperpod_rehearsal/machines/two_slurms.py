"""Two Slurms on one image, as HyperPod's images of 2026 have them: a tree each below /opt, and /opt/slurm leads to one.

The first is the image's own. The second is of another release's packages, unpacked without being installed. Its
programs have two paths compiled in, where its plugins lie and where its own library lies; both are the same string,
which is replaced by a shorter one. So its programs are what its packagers built, and run by their own names from
everywhere, with no variable in the environment that a job would inherit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.run import Runner
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.machines.image_root import DAEMONS, put

PACKAGES = ("slurmctld", "slurmd", "slurmdbd", "slurm-client", "libslurm-dev")
NEWER, LACKING = ("libhwloc.so.15",), ("libhttp_parser.so.2.*", "libllhttp.so.9.*")
"""Libraries that the second Slurm needs newer than the image has them, and that the image lacks. Its C library must be
new enough, which the last step of `lay_out` finds out."""

SLURMD = """\
#!/bin/sh
# slurmd looks for slurmstepd below the prefix that it was built for, which is the other Slurm's.
exec {tree}/libexec/slurmd -d {tree}/sbin/slurmstepd "$@"
"""


@dataclass(frozen=True)
class SecondSlurm:
    """`beside`: version of the image's own Slurm; `version`, `codename`, `sources`: of the second one's release.
    `layout`: digest of the code that lays both out."""

    beside: str
    version: str
    codename: str
    sources: Tuple[str, ...]
    layout: str


def tree_of(version: str) -> str:
    """Where the Slurm of a version lies on a node."""
    return f"/opt/slurm-{version}"


def replace_in_c_strings(data: bytes, old: bytes, new: bytes) -> bytes:
    """`data` with `old` replaced wherever a C string has it; nothing moves, what is left over becomes NULs.

    Raises ValueError when `new` is longer.
    """
    if len(new) > len(old):
        raise ValueError(f"{new!r} is longer than {old!r}")
    changed = bytearray(data)
    at = data.find(old)
    while at >= 0:
        end = data.index(b"\0", at)
        text = new + data[at + len(old) : end]
        changed[at:end] = text.ljust(end - at, b"\0")
        at = data.find(old, end)
    return bytes(changed)


def lay_out(root: Path, unpacked: Path, second: SecondSlurm, runner: Runner) -> None:
    """Give a customized image both trees; `unpacked`: the root of the second one's packages. Raises RehearsalError,
    RunError."""
    _lay_out_first(root, second.beside)
    _lay_out_second(root, unpacked, second.version)
    for version in (second.beside, second.version):
        shown = runner.run(["chroot", str(root), f"{tree_of(version)}/sbin/slurmctld", "-V"], timeout=30).stdout
        if re.search(r"[0-9]+\.[0-9]+", shown).group() != version:  # type: ignore[union-attr]
            raise RehearsalError(f"{tree_of(version)} of the image has {shown.strip()!r}")


def _lay_out_first(root: Path, version: str) -> None:
    tree = root / tree_of(version).lstrip("/")
    by_descriptor.rename(root / "opt/slurm", tree)
    by_descriptor.symlink(tree.name, root / "opt/slurm")
    by_descriptor.symlink("/usr/include", tree / "include")
    by_descriptor.symlink(f"/{_plugins(root).relative_to(root)}", tree / "lib/slurm")
    # HyperPod has no Slurm in /usr/bin: what a shell or a unit finds there would be of one version for ever.
    for link in sorted((tree / "bin").iterdir()):
        program = root / "usr/bin" / link.name
        by_descriptor.unlink(link)
        by_descriptor.rename(program, link)


def _lay_out_second(root: Path, unpacked: Path, version: str) -> None:
    path = tree_of(version)
    tree = root / path.lstrip("/")
    plugins = _plugins(unpacked)
    old, new = f"/{plugins.relative_to(unpacked)}".encode(), f"{path}/lib/slurm".encode()
    for name in ("bin", "sbin", "libexec", "lib/slurm", "include/slurm", "etc"):
        by_descriptor.make_directories(tree / name, shared=True)
    for program in sorted((unpacked / "usr/bin").iterdir()):
        if old in program.read_bytes():
            _put_program(program, tree / "bin" / program.name, old, new)
    for daemon in DAEMONS:
        names = (unpacked / "usr/sbin" / daemon, unpacked / "usr/sbin" / f"{daemon}-wlm")
        program = next(path for path in names if path.is_file() and not path.is_symlink())
        _put_program(program, tree / ("libexec" if daemon == "slurmd" else "sbin") / daemon, old, new)
    put(root, f"{path}/sbin/slurmd", SLURMD.format(tree=path), 0o755)
    for plugin in sorted(plugins.iterdir()):
        if not plugin.is_symlink():
            _put_program(plugin, tree / "lib/slurm" / plugin.name, old, new)
    for patterns, place in ((NEWER, tree / "lib/slurm"), (LACKING, _plugins(root).parent)):
        for library in (path for pattern in patterns for path in plugins.parent.glob(pattern)):
            by_descriptor.copy_file(library.resolve(), place / library.name)
    for header in sorted((unpacked / "usr/include/slurm").iterdir()):
        by_descriptor.copy_file(header, tree / "include/slurm" / header.name)


def _plugins(root: Path) -> Path:
    """The directory of Slurm's plugins and library, as Debian has it. Raises RehearsalError."""
    for directory in (root / "usr/lib").glob("*/slurm-wlm"):
        return directory
    raise RehearsalError(f"{root}: Slurm's plugins are not in /usr/lib/*/slurm-wlm")


def _put_program(source: Path, target: Path, old: bytes, new: bytes) -> None:
    by_descriptor.write_bytes(target, replace_in_c_strings(source.read_bytes(), old, new))
    by_descriptor.set_mode(target, 0o755)
