"""Put the stand-ins into a node's root: their source, and launchers under the names of the real programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import hyperpod_kit

LIBRARY = Path("usr/lib/hyperpod-kit-rehearsal")
LAUNCHERS = {
    "usr/bin/mount-s3": "mount-s3",
    "usr/sbin/mount.mount-s3": "mount.mount-s3",
    "usr/sbin/mount.efs": "mount.efs",
    "usr/sbin/mount.s3files": "mount.s3files",
    "usr/sbin/mount.lustre": "mount.lustre",
    "usr/sbin/mount.nfs": "mount.nfs",
    "usr/sbin/mount.nfs4": "mount.nfs4",
    "usr/sbin/modinfo": "modinfo",
}
"""Path in the root -> name of the stand-in."""


def install(root: Path) -> None:
    """Install under `root` (`/` or an image's root), replacing what an earlier installation left.

    Raises FileExistsError when a launcher's place is taken by something else, such as the real client.
    """
    package = Path(hyperpod_kit.__file__).parent
    library = root / LIBRARY
    for path, program in LAUNCHERS.items():
        _check_free(root / path, _launcher(program))
    shutil.rmtree(library / "hyperpod_kit", ignore_errors=True)
    target = library / "hyperpod_kit" / "rehearsal"
    shutil.copytree(
        package / "rehearsal" / "standins",
        target / "standins",
        ignore=shutil.ignore_patterns("__pycache__", "install.py"),
    )
    for package_directory in (library / "hyperpod_kit", target):
        (package_directory / "__init__.py").write_text('"""Part of hyperpod-kit: the stand-ins of a rehearsal."""\n')
    (library / "__main__.py").write_text(
        "import sys\n\nfrom hyperpod_kit.rehearsal.standins.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
    )
    for path, program in LAUNCHERS.items():
        launcher = root / path
        launcher.parent.mkdir(parents=True, exist_ok=True)
        launcher.write_text(_launcher(program))
        os.chmod(launcher, 0o755)


def _launcher(program: str) -> str:
    return (
        f"#!/bin/sh\n# Stand-in of the hyperpod-kit rehearsal, not the real {program}.\n"
        f'exec /usr/bin/python3 -I -S /{LIBRARY} {program} "$@"\n'
    )


def _check_free(path: Path, content: str) -> None:
    if path.exists() and path.read_bytes() != content.encode():
        raise FileExistsError(f"{path} is there already and is not a stand-in")
