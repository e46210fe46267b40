"""Put the stand-ins into a node's root: their source, and launchers under the names of the real programs."""

from __future__ import annotations

import shutil
from pathlib import Path

from hyperpod_kit.untrusted import by_descriptor

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


def install_standins(root: Path) -> None:
    """Install under `root` (`/` or an image's root), replacing what an earlier installation left.

    Raises FileExistsError when a launcher's place is taken by something else, such as the real client.
    """
    library = root / LIBRARY
    for path, program in LAUNCHERS.items():
        _require_free_or_standin(root / path, _launcher_script(program))
    target = library / "hyperpod_rehearsal"
    by_descriptor.remove_tree(target, ignore_errors=True)
    by_descriptor.copy_tree(
        Path(__file__).parent,
        target / "standins",
        ignore=shutil.ignore_patterns("__pycache__", "install.py"),
    )
    by_descriptor.write_text(target / "__init__.py", '"""Part of hyperpod-kit: the stand-ins of a rehearsal."""\n')
    by_descriptor.write_text(
        library / "__main__.py",
        "import sys\n\nfrom hyperpod_rehearsal.standins.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n",
    )
    for path, program in LAUNCHERS.items():
        launcher = root / path
        by_descriptor.make_parents(launcher)
        by_descriptor.write_text(launcher, _launcher_script(program))
        by_descriptor.set_mode(launcher, 0o755)


def _launcher_script(program: str) -> str:
    return (
        f"#!/bin/sh\n# Stand-in of the hyperpod-kit rehearsal, not the real {program}.\n"
        f'exec /usr/bin/python3 -I -S /{LIBRARY} {program} "$@"\n'
    )


def _require_free_or_standin(path: Path, content: str) -> None:
    if path.exists() and path.read_bytes() != content.encode():
        raise FileExistsError(f"{path} is there already and is not a stand-in")
