"""Seconds, processor seconds, bytes and memory of one part of one fleet, printed as JSON for lab/programs/fleets."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterator


def memory_mb(field: str) -> float:
    """A memory figure of this process in MB: VmRSS, or VmHWM for the most that it had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


class Meter:
    """What each phase took, by its name."""

    def __init__(self) -> None:
        self.rows: Dict[str, Dict[str, Any]] = {}

    @contextlib.contextmanager
    def measure_phase(self, name: str) -> Iterator[Dict[str, Any]]:
        """Record and print `s`, `cpu_s` and `rss_mb` of the block as a row, to which the block may add bytes."""
        row: Dict[str, Any] = {}
        begin, cpu = time.perf_counter(), time.process_time()
        yield row
        row.update(s=time.perf_counter() - begin, cpu_s=time.process_time() - cpu, rss_mb=memory_mb("VmRSS"))
        self.rows[name] = row
        # A phase that does not come to its end must not take the earlier ones with it.
        print(json.dumps({name: row}), flush=True)

    def record_peak_memory(self) -> None:
        """The most memory so far, as a row of its own."""
        self.rows["peak"] = {"rss_mb": memory_mb("VmHWM")}
        print(json.dumps({"peak": self.rows["peak"]}), flush=True)
