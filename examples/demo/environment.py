"""The training job's Python environment, built once and shared read-only with every node.

Nodes run the system Python of their image and have no package index in reach, as in a VPC without one: so the
environment is assembled here for *their* Python and mounted there, the way a cluster shares /fsx/envs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "numpy", "xxhash")

SYSTEM_PYTHON = {"12": "3.11", "22.04": "3.10", "24.04": "3.12"}
"""VERSION_ID of Debian or Ubuntu -> its /usr/bin/python3. The node image is made of this machine's distribution."""


def node_python(os_release: str) -> str:
    """Version of the Python on the nodes, "3.11". Raises KeyError on a distribution that has no node image."""
    facts = dict(line.rstrip().split("=", 1) for line in os_release.splitlines() if "=" in line)
    return SYSTEM_PYTHON[facts["VERSION_ID"].strip('"')]


def build(cache: Path) -> Path:
    """Return a directory with `bin/python3`, the packages, hyperpod_kit and the example: what nodes see as /opt/train.

    Packages are cached by what was asked for; the project's own code is copied fresh each time.
    """
    version = node_python(Path("/etc/os-release").read_text())
    constraints = REPOSITORY / "constraints.txt"
    digest = hashlib.sha256(f"{version} {PACKAGES} {constraints.read_text()}".encode()).hexdigest()[:16]
    root = cache / f"train-{digest}"
    if not (root / "pyvenv.cfg").exists():
        partial = cache / f"train-{digest}.{os.getpid()}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _assemble(partial, version, constraints)
            shutil.rmtree(root, ignore_errors=True)
            partial.rename(root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    site = root / "lib" / f"python{version}" / "site-packages"
    for source, target in ((REPOSITORY / "hyperpod_kit", site / "hyperpod_kit"),
                           (REPOSITORY / "examples" / "gpt", root / "gpt")):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def _assemble(root: Path, version: str, constraints: Path) -> None:
    site = root / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile",
         "--target", str(site), "--python-version", version, "--only-binary=:all:", "-c", str(constraints), *PACKAGES],
        check=True, timeout=900)
    # Compiled here, because nodes see the directory read-only and would compile torch anew at every start.
    subprocess.run([sys.executable if sys.version.startswith(version + ".") else "/usr/bin/python3", "-m", "compileall",
                    "-q", "-j", "2", str(site)], check=False, timeout=300, stdout=subprocess.DEVNULL)
    (root / "bin").mkdir()
    (root / "bin" / "python3").symlink_to("/usr/bin/python3")
    (root / "bin" / "python").symlink_to("python3")
    (root / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n")
