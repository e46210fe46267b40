"""Events that `job run --json-lines` wrote to a job's output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

from hyperpod_kit.job.base.report import PREFIX


def job_events(output: Path, kind: str) -> List[Dict[str, Any]]:
    """Those of one kind, none while there is no output. Ranks and agents write sentences with the same prefix."""
    if not output.exists():
        return []
    lines = output.read_text().splitlines()
    events = [json.loads(line[len(PREFIX) :]) for line in lines if line.startswith(PREFIX + "{")]
    return [event for event in events if event["event"] == kind]
