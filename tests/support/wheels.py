"""Small wheels, made without a build backend: what a test installs without a package index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Dict

WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(directory: Path, name: str, version: str, text: str) -> Path:
    """A wheel with one package of one module."""
    module = name.replace("-", "_")
    information = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": text.encode(),
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{information}/WHEEL": WHEEL,
    }
    return _write_wheel(directory, information, files)


def wheel_of_installed(directory: Path, name: str) -> Path:
    """A wheel of a pure distribution that is installed here, without its programs."""
    distribution = metadata.distribution(name)
    files = {}
    for place in distribution.files or ():
        path = str(place)
        if path.startswith("..") or path.endswith((".pyc", "/RECORD", "/WHEEL")):
            continue
        files[path] = Path(str(place.locate())).read_bytes()
    information = next(path.split("/")[0] for path in files if path.endswith(".dist-info/METADATA"))
    files[f"{information}/WHEEL"] = WHEEL
    return _write_wheel(directory, information, files)


def _write_wheel(directory: Path, information: str, files: Dict[str, bytes]) -> Path:
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{information[: -len('.dist-info')]}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
    return file


def sha256_of(file: Path) -> str:
    """As a lock file and `sha256sum` have it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
