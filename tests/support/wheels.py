"""Small wheels, made without a build backend: what a test installs without a package index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(directory: Path, name: str, version: str, text: str) -> Path:
    """A wheel with one package of one module."""
    module = name.replace("-", "_")
    information = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": text,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return file


def sha256_of(file: Path) -> str:
    """As a lock file and `sha256sum` have it."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
