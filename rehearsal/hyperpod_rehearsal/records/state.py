"""state.json: what runs, for `status`, `env` and clean-up; written whole, by a rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.system import atomic_file
from hyperpod_kit.system.process import Process
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json

MOST = 64 << 20
"""Bytes of a state file: far above what the largest cluster needs."""


def write_json(path: Path, data: Any, mode: int = 0o600) -> None:
    """Replace `path` by the JSON of `data`; a reader sees the old file or the new one."""
    atomic_file.write_atomically(path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode(), mode)


def read_own_json_object_or_none(path: Path) -> Optional[Dict[str, Any]]:
    """Return the object in `path`, None when there is none that can be read, or the file is not this user's."""
    try:
        data = json.loads(files.read_small_regular_file(str(path), MOST, required_owner_uid=os.geteuid()))
    except (OSError, ValueError, RecursionError, Untrusted):
        return None
    if isinstance(data, dict):
        return data
    return None


def read_process_identity_or_none(path: Path) -> Optional[Process]:
    """Return the process identity in a file that `write_process_identity` wrote, None when there is none."""
    try:
        return dataclass_from_json(Process, read_own_json_object_or_none(path))
    except ValueError:
        return None


def write_process_identity(path: Path, process: Process) -> None:
    """Write a process identity."""
    write_json(path, dataclass_to_json(process))
