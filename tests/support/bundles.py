"""Bundles of this version and of an earlier one, installed by their own entry script; nothing of a node is set up."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Dict
from unittest import mock

from hyperpod_kit.bundle import contents, manifest, render
from hyperpod_kit.bundle.sources import Sources
from tests.support.mount_root import MountRoot

REPOSITORY = Path(__file__).resolve().parents[2]

EARLIER = "4d273d3a"
"""The commit whose running jobs survive the change to this version."""

# Of the program of a node only what jobs need: `node apply` would set this host up.
WITHOUT_APPLY = b"import sys\nif sys.argv[1:2] == ['node']:\n    sys.exit(0)\n"

# An overlay: the host's /opt may not have the directory.
ENTER = """\
set -e
mount --make-rslave /
mount -t tmpfs -o mode=755 node /mnt
mkdir /mnt/up /mnt/work
mount -t overlay node -o lowerdir=/opt,upperdir=/mnt/up,workdir=/mnt/work /opt
mkdir -p /opt/hyperpod-kit
mount --bind "$1" /opt/hyperpod-kit
"""


class BundleRoot(MountRoot):
    """A node whose /opt/hyperpod-kit is its own. `home`: the directory that lies there."""

    def __init__(self, home: Path) -> None:
        super().__init__(ENTER, str(home))


def earlier_sources(folder: Path) -> Path:
    """The earlier version's tree, unpacked there."""
    argv = ["git", "-C", str(REPOSITORY), "archive", EARLIER]
    data = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=data, check=True, timeout=120)
    return folder


def files_of(tree: Path, note: str = "") -> Dict[str, bytes]:
    """What ships of a version's tree, but nothing that a configuration renders. `note`: makes it another bundle."""
    sources = Sources(tree, tree / "hyperpod_kit")
    files_there = [name for name in contents.VENDORED_FILES if (sources.package / name).exists()]
    packages_there = [name for name in contents.VENDORED_PACKAGES if (sources.package / name).exists()]
    with mock.patch.multiple(contents, VENDORED_FILES=files_there, VENDORED_PACKAGES=packages_there):
        files = {place: path.read_bytes() for place, path in contents.list_copied_sources(sources)}
    files["lib/__main__.py"] = WITHOUT_APPLY + files["lib/__main__.py"]
    files["node_config.json"] = b'{\n  "failure_pause": 0.0\n}\n'
    files["note"] = note.encode()
    return files


def write(files: Dict[str, bytes], staging: Path) -> str:
    """The bundle of these files, as it lies where a node has downloaded it; its id. The entry script has the format."""
    release = "lib/hyperpod_kit/version.py"
    if release not in files:
        release = "lib/hyperpod_kit/__init__.py"  # where builds before 0.1.0 have it
    text = files[release].decode()
    stated = re.search(r'^(?:RELEASE|__version__) = "(.*)"$', text, re.MULTILINE)
    assert stated is not None
    version = stated.group(1)
    if b"hpk-bundle/1" in files["on_create.sh"]:
        return _write_each_file(files, version, staging)
    bundle = render.assemble_bundle(files, version, "bucket", "kit/demo/")
    render.replace_bundle_directory(bundle, staging)
    return bundle.bundle_id


def _write_each_file(files: Dict[str, bytes], version: str, staging: Path) -> str:
    """The bundle of the earlier version, which had no archive; its id."""
    listing = manifest.make_sha256sums(files)
    identity = manifest.compute_bundle_id(listing)
    description = manifest.make_bundle_json(version, identity).replace(manifest.FORMAT.encode(), b"hpk-bundle/1")
    for place, data in {**files, manifest.SUMS: listing, manifest.DESCRIPTION: description}.items():
        path = staging / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return identity


def install(staging: Path, root: Path) -> None:
    """Run the bundle's own entry script, as an administrator does on a node that runs. Raises AssertionError."""
    done = subprocess.run(
        ["/bin/bash", str(staging / "on_create.sh")],
        env={"PATH": os.environ["PATH"], "HPK_ROOT": str(root)},
        timeout=120,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
