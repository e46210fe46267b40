"""fio where it is installed: the same streams by the tool that others compare with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hyperpod_kit.errors import RunError, RunTimeout
from hyperpod_kit.storage.bench.measurements.streams import StreamSample
from hyperpod_kit.untrusted.parse import parse_json_object

TIMEOUT = 600.0


def is_installed() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


def build_fio_command(directory: Path, kind: str, streams: int, file_size: int) -> list[str]:
    """Build fio's command. `kind`: write or read. Sequential, 4 MiB blocks, one file a stream, synced at the end."""
    return [
        *(
            "fio",
            "--name=hpk",
            f"--directory={directory}",
            f"--rw={kind}",
            f"--numjobs={streams}",
            f"--size={file_size}",
        ),
        *("--bs=4M", "--end_fsync=1", "--group_reporting", "--output-format=json", "--direct=0", "--invalidate=1"),
    ]


def measure_with_fio(directory: Path, kind: str, streams: int, file_size: int) -> StreamSample:
    """Run fio once. Raises RunError, RunTimeout."""
    argv = build_fio_command(directory, kind, streams, file_size)
    try:
        completed = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise RunTimeout(argv, -1, stderr=f"no end after {TIMEOUT:.0f} s") from None
    if completed.returncode:
        raise RunError(argv, completed.returncode, completed.stdout, completed.stderr)
    try:
        return parse_report(kind, streams, completed.stdout)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise RunError(argv, 0, stderr="its output is not the JSON of fio") from None


def parse_report(kind: str, streams: int, printed: str) -> StreamSample:
    """Parse fio's JSON. Warnings may stand before it. Raises ValueError, KeyError."""
    body: dict[str, Any] = parse_json_object(printed[printed.index("{") :])["jobs"][0][kind]
    return StreamSample(kind, streams, int(body["io_bytes"]), float(body["runtime"]) / 1000, False)
