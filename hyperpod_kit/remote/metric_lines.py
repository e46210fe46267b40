"""Reads the series of jobs and checkpoints in a node's file of metrics. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Optional

from hyperpod_kit.untrusted.text import clean_one_line

MOST_JOBS = 64
"""Jobs that are taken from one node."""

_LINE = re.compile(r'hyperpod_kit_([a-z_]{1,80})\{((?:[a-z_]{1,30}="(?:[^"\\]|\\.)*",?){1,12})\} (\S{1,30})')
_LABEL = re.compile(r'([a-z_]{1,30})="((?:[^"\\]|\\.)*)"')
_JOB = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?")
_COUNTS = {"job_attempts": "attempts", "job_lost_steps": "lost_steps", "job_step": "step"}
_SECONDS = {"job_moved_timestamp_seconds": "moved", "job_step_seconds": "step_seconds"}
"""Series of one value a job -> field of PublishedJob."""

_LASTED = "steps"
_REDONE = "twice"


@dataclass
class PublishedJob:
    """What a node publishes of one job; None for what it does not. `moved`: when its rank 0 last
    moved, Unix seconds;
    `spent`: cause -> GPU-seconds."""

    goodput: Optional[float] = None
    attempts: Optional[int] = None
    lost_steps: Optional[int] = None
    step: Optional[int] = None
    moved: Optional[float] = None
    step_seconds: Optional[float] = None
    durable_step: Optional[int] = None
    durable_at: Optional[float] = None
    lost_saves: int = 0
    spent: dict[str, float] = field(default_factory=dict)


def parse_job_series(text: str) -> dict[str, PublishedJob]:
    """Return job id -> its series; whatever is no such line is passed over."""
    jobs: dict[str, PublishedJob] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        value = _finite_number(match[3])
        job = labels.get("job_id", "")
        if value is None or not _JOB.fullmatch(job) or (job not in jobs and len(jobs) >= MOST_JOBS):
            continue
        _take(jobs.setdefault(job, PublishedJob()), match[1], labels, value)
    return jobs


def _take(series: PublishedJob, name: str, labels: dict[str, str], value: float) -> None:
    if name in _COUNTS:
        setattr(series, _COUNTS[name], int(value))
    elif name in _SECONDS:
        setattr(series, _SECONDS[name], value)
    elif name == "job_goodput_ratio":
        series.goodput = min(1.0, max(0.0, value))
    elif name == "job_gpu_seconds_total":
        series.spent[clean_one_line(labels.get("cause", ""), 20)] = value
    elif name == "checkpoint_durable_step":
        series.durable_step = max(int(value), series.durable_step or 0)
    elif name == "checkpoint_durable_timestamp_seconds":
        series.durable_at = max(value, series.durable_at or 0.0)
    elif name == "checkpoint_lost_saves":
        series.lost_saves = max(int(value), series.lost_saves)


def _finite_number(text: str) -> Optional[float]:
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or not 0 <= value < 1e15:
        return None
    return value


def lost_seconds(spent: dict[str, float]) -> dict[str, float]:
    """Return what was lost to what: of the causes, all but the steps that lasted."""
    return {cause: seconds for cause, seconds in spent.items() if cause not in (_LASTED, "lasted") and seconds > 0}
