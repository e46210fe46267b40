"""Debian packages as an admin gives them to nodes without the internet: what a node's image lacks, next to the
configuration, as entries of hyperpod_kit.clients. apt itself says what that is, from the image's list of packages."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

from hyperpod_rehearsal.machines import image

ARCHITECTURES = {"amd64": "x86_64", "arm64": "arm64", "all": "all"}


def given(client: str, package: str, beside: Path, cache: Path) -> List[Dict[str, Any]]:
    """Entries for `package` (several: with blanks between them) and what they need, with their files below `beside`."""
    node_image = image.ensure_image_built(cache)
    store = cache / f"packages-{node_image.stem}" / client
    if not (store / "complete").exists():
        shutil.rmtree(store, ignore_errors=True)
        (store / "partial").mkdir(parents=True)
        status = store / "status"
        status.write_bytes(subprocess.check_output(["unsquashfs", "-cat", str(node_image), "var/lib/dpkg/status"]))
        options = [f"Dir::State::status={status}", f"Dir::Cache::archives={store}", "Debug::NoLocking=1"]
        subprocess.run(
            [
                *("apt-get", "-qq", "-y", "--no-install-recommends", "--download-only"),
                *(word for option in options for word in ("-o", option)),
                *("install", *package.split()),
            ],
            check=True,
            timeout=600,
        )
        (store / "complete").touch()
    return [entry(client, path, beside) for path in sorted(store.glob("*.deb"))]


def entry(client: str, path: Path, beside: Path) -> Dict[str, Any]:
    """The entry of one .deb, which is copied below `beside`."""
    said = subprocess.check_output(["dpkg-deb", "-f", str(path), "Package", "Version", "Architecture"], text=True)
    fields = dict(re.findall(r"(?m)^(\S+): (.*)$", said))
    file = f"packages/{client}/{path.name.replace('%3a', '_')}"
    (beside / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, beside / file)
    return {
        "client": client,
        "name": fields["Package"],
        "version": fields["Version"],
        "arch": ARCHITECTURES[fields["Architecture"]],
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "file": file,
    }
