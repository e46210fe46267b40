"""state.json: what runs, for `status`, `env` and clean-up; written whole, by a rename."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional

from hyperpod_kit.rehearsal.processes import Process


def write_json(path: Path, data: Any, mode: int = 0o600) -> None:
    """Replace `path` by the JSON of `data`; a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(data, file, indent=1, sort_keys=True)
            file.write("\n")
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """The object in `path`, None when there is none that can be read."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_process(path: Path) -> Optional[Process]:
    """Process identity in a file that `write_process` wrote."""
    data = read_json(path)
    try:
        return Process(int(data["pid"]), int(data["started"])) if data else None
    except (KeyError, TypeError, ValueError):
        return None


def write_process(path: Path, process: Process) -> None:
    """Note a process identity."""
    write_json(path, {"pid": process.pid, "started": process.started})
