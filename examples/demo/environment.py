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
import time
from pathlib import Path
from typing import Callable, List

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "numpy", "xxhash")

CODE = ("hyperpod_kit", "examples/gpt")
KEPT_SECONDS = 24 * 3600.0
"""An environment that no run has asked for so long is removed."""

SYSTEM_PYTHON = {"12": "3.11", "22.04": "3.10", "24.04": "3.12"}
"""VERSION_ID of Debian or Ubuntu -> its /usr/bin/python3. The node image is made of this machine's distribution."""


def node_python(os_release: str) -> str:
    """Version of the Python on the nodes, "3.11". Raises KeyError on a distribution that has no node image."""
    facts = dict(line.rstrip().split("=", 1) for line in os_release.splitlines() if "=" in line)
    return SYSTEM_PYTHON[facts["VERSION_ID"].strip('"')]


def build(cache: Path) -> Path:
    """Return a directory with `bin/python3`, the packages, hyperpod_kit and the example: what nodes see as /opt/train.

    Packages are cached by what was asked for, the project's own code by its contents: what nodes of a running cluster
    see is never changed under them.
    """
    version = node_python(Path("/etc/os-release").read_text())
    constraints = REPOSITORY / "constraints.txt"
    digest = hashlib.sha256(f"{version} {PACKAGES} {constraints.read_text()}".encode()).hexdigest()[:16]
    packages = cache / f"train-{digest}"
    if not (packages / "pyvenv.cfg").exists():
        _place(packages, lambda partial: _assemble(partial, version, constraints))
    root = cache / f"train-{digest}-{_code_digest()}"
    if not root.exists():
        _place(root, lambda partial: _add_code(packages, partial, version))
    os.utime(root)
    for old in cache.glob(f"train-{digest}-*"):
        if old != root and time.time() - old.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    return root


def _place(target: Path, fill: Callable[[Path], None]) -> None:
    """Make a directory that appears by a rename when it is complete."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        fill(partial)
        if not target.exists():
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _code() -> List[Path]:
    return [
        path
        for tree in CODE
        for path in sorted((REPOSITORY / tree).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _code_digest() -> str:
    digest = hashlib.sha256()
    for path in _code():
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _add_code(packages: Path, root: Path, version: str) -> None:
    """Hard links to the packages, copies of the code."""
    subprocess.run(["cp", "-al", str(packages), str(root)], check=True, timeout=120)
    site = root / "lib" / f"python{version}" / "site-packages"
    for source, target in (
        (REPOSITORY / "hyperpod_kit", site / "hyperpod_kit"),
        (REPOSITORY / "examples" / "gpt", root / "gpt"),
    ):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        _compile(target, version)


def _compile(tree: Path, version: str) -> None:
    """Here, because nodes see the directory read-only and would compile all of it anew at every start."""
    python = sys.executable if sys.version.startswith(version + ".") else "/usr/bin/python3"
    argv = [python, "-m", "compileall", "-q", "-j", "2", str(tree)]
    subprocess.run(argv, check=False, timeout=300, stdout=subprocess.DEVNULL)


def _assemble(root: Path, version: str, constraints: Path) -> None:
    site = root / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    versions = root / "versions.txt"  # pip takes digests only where every requirement has one
    lines = [line for line in constraints.read_text().splitlines() if not line.startswith(("#", " "))]
    versions.write_text("".join(line.removesuffix("\\") + "\n" for line in lines))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-qq",
            "--disable-pip-version-check",
            "--no-compile",
            "--target",
            str(site),
            "--python-version",
            version,
            "--only-binary=:all:",
            "-c",
            str(versions),
            *PACKAGES,
        ],
        check=True,
        timeout=900,
    )
    _compile(site, version)
    (root / "bin").mkdir()
    (root / "bin" / "python3").symlink_to("/usr/bin/python3")
    (root / "bin" / "python").symlink_to("python3")
    (root / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n")
