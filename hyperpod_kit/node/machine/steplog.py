"""provisioning.log: one JSON line a step, in the only file that HyperPod ships to CloudWatch.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, Mapping

from hyperpod_kit.untrusted import by_descriptor

STATUSES = ("ok", "changed", "skipped", "failed")


@dataclass(frozen=True)
class StepRecord:
    """How one step ended. `ts`: Unix seconds at its end; `error` and `hint` are "" unless it failed."""

    ts: float
    node: str
    role: str
    step: str
    status: str
    duration_ms: int
    detail: str = ""
    error: str = ""
    hint: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return {
            "ts": format_timestamp(self.ts),
            "node": self.node,
            "role": self.role,
            "step": self.step,
            "status": self.status,
            "duration_ms": self.duration_ms,
            "detail": self.detail,
            "error": self.error,
            "hint": self.hint,
        }

    def to_text(self) -> str:
        """The same for a person: one line, and below it what to do about a failure."""
        reason = self.error or self.detail
        text = f"hyperpod-kit: {self.step}: {self.status}"
        if reason:
            text += f": {reason}"
        line = f"{text} ({self.duration_ms} ms)"
        if self.hint:
            return f"{line}\nhint: {self.hint}"
        return line


def format_timestamp(seconds: float) -> str:
    """Format Unix seconds as the lines of the log have them, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def append_record(path: str, record: StepRecord) -> None:
    append_json_line(path, record.to_dict())


def append_json_line(path: str, line: Mapping[str, Any]) -> None:
    """Append one line with one write, so that lines of several processes never mix. Raises OSError."""
    by_descriptor.make_parents(path)
    handle = by_descriptor.open_own_or_root_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)
