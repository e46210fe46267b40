"""The Python interpreters of this machine, of the versions that nodes and admins have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Dict, Tuple

VERSIONS = [(3, minor) for minor in range(8, 14)]


@lru_cache(maxsize=None)
def interpreters() -> Dict[Tuple[int, int], str]:
    """(3, minor) -> program, from the PATH and from pyenv."""
    found: Dict[Tuple[int, int], str] = {sys.version_info[:2]: sys.executable}
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in VERSIONS:
        name = f"python{version[0]}.{version[1]}"
        candidates = [
            *sorted(str(path) for path in roots.glob(f"{version[0]}.{version[1]}.*/bin/{name}")),
            f"/usr/bin/{name}",
            shutil.which(name),
        ]
        for candidate in [] if version in found else candidates:
            if candidate and os.path.exists(candidate) and answers(candidate, version):
                found[version] = candidate
                break
    return {version: found[version] for version in VERSIONS if version in found}


def answers(program: str, version: Tuple[int, int]) -> bool:
    """Whether it is that version: the shims of pyenv lie on the PATH also for what is not installed."""
    code = "import sys; print(sys.version_info[:2])"
    done = subprocess.run(
        [program, "-I", "-S", "-c", code], text=True, timeout=20, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return done.stdout.strip() == str(version)
