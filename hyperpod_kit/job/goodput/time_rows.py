"""Rows that rank 0's wrapper and `job run` write of a job's time: `<state>/time/<attempt>.jsonl` and `<run>.jsonl`.

    attempt   a row at each phase of rank 0 and at least once a minute: seconds of every phase since its process began
    run       one row a run of the batch script: when it was queued and started, and what it holds

Rows are only ever appended, each by one write; a torn line (the host was lost) is passed over.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import io
import json
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import COUNTED
from hyperpod_kit.untrusted import files, parse
from hyperpod_kit.untrusted.text import clean_one_line

FORMAT, RUN_FORMAT = "hpk-time/1", "hpk-time-run/1"
FOLDER = "time"

IMPORT, OPEN_STEP, DATA = "import", "open-step", "data"
"""Seconds that belong to no phase: before the rank's first report; of the open step; waited for samples."""

_KINDS = (IMPORT, OPEN_STEP, DATA, *(phase.value for phase in COUNTED))
_NAME = re.compile(r"[A-Za-z0-9_+.-]{1,200}")
LARGEST = 256 << 20
"""Most bytes of a file of rows."""

_MOST = 1 << 62
_LATEST = 1e11


class MemoryCapture(NamedTuple):
    """A capture in the memory of rank 0's node.

    `at`: when it was sealed, Unix seconds, None where that is not known; `on_storage`: whether storage has it, too.
    """

    step: int
    at: Optional[float]
    on_storage: bool


class TimeRow(NamedTuple):
    """The progress of rank 0 at `t` in the launch `launch` on `node`; its process began at `began`; in Unix seconds.

    `phase`, `since`: its phase, and when that began; `begins`: its first step; `step`: the last one completed. `first`:
    how many steps its first report was of, and their seconds; `slowest`: seconds of the slowest step after them.
    `seconds`: by phase, with IMPORT, OPEN_STEP and DATA; they add up to `t` less `began`. `reports`: whether the
    program reports its phases. `over`: whether it has ended. `captured`: the newest capture in memory, None where it is
    not known.
    """

    launch: str
    node: str
    began: float
    t: float
    phase: Phase
    since: float
    begins: Optional[int]
    step: Optional[int]
    first: Tuple[int, float]
    slowest: float
    seconds: Mapping[str, float]
    reports: bool = True
    over: bool = False
    captured: Optional[MemoryCapture] = None


class RunRow(NamedTuple):
    """A run of the batch script.

    `queued`: when it came into the queue, by a requeue too; `started`: when it got its nodes; 0 where Slurm did not
    report it. `gpus`: of all its nodes, None where the number is not known.
    """

    job: str
    restart: int
    t: float
    queued: float
    started: float
    gpus: Optional[int]
    nodes: Tuple[str, ...]
    user: str = ""
    partition: str = ""
    cluster: str = ""


def path(state: str, name: str) -> str:
    """Return the path of the file of an attempt or of a run. Raises ValueError for a name that neither can have."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is not an attempt")
    return os.path.join(state, FOLDER, f"{name}.jsonl")


def run_name(job: str, life: str, restart: int) -> str:
    """Return the name of the file of a run of the batch script, which no attempt can have."""
    if life:
        return f"{job}-{life}.{restart}.run"
    return f"{job}.{restart}.run"


def encoded(row: TimeRow) -> bytes:
    """Return the row of an attempt as a line of JSON."""
    value: Dict[str, Any] = {"format": FORMAT, **row._asdict(), "phase": row.phase.value, "first": list(row.first)}
    value["seconds"] = {name: round(seconds, 3) for name, seconds in row.seconds.items() if seconds}
    for name in ("began", "t", "since", "slowest"):
        value[name] = round(value[name], 3)
    del value["captured"]
    if row.captured is not None:
        value["captured"] = row.captured._asdict()
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def encoded_run(row: RunRow) -> bytes:
    """Return the row of a run as a line of JSON."""
    value = {"format": RUN_FORMAT, **row._asdict(), "nodes": list(row.nodes)}
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def decoded(line: bytes) -> Optional[TimeRow]:
    """Return the row of an attempt, None for a line that has none.

    Such a line may come from anyone who can write to the root.
    """
    try:
        return _time_row(_parse_object_of_format(line, FORMAT))
    except (KeyError, TypeError, ValueError):
        return None


def decoded_run(line: bytes) -> Optional[RunRow]:
    """Return the row of a run, None for a line that has none."""
    try:
        return _run_row(_parse_object_of_format(line, RUN_FORMAT))
    except (KeyError, TypeError, ValueError):
        return None


def _parse_object_of_format(line: bytes, expected_format: str) -> Mapping[str, Any]:
    value = parse.parse_json_object(line.decode("utf-8", "replace"))
    if value.get("format") != expected_format:
        raise ValueError("of another format")
    return value


def read(state: str, name: str) -> List[TimeRow]:
    """Return the rows of an attempt in the order of the file; none where there is no file. Raises OSError."""
    return [row for row in map(decoded, _lines(state, name)) if row is not None]


def read_run(state: str, name: str) -> Optional[RunRow]:
    """Return the row of a run, the first one in its file; None where there is none. Raises OSError."""
    for line in _lines(state, name):
        row = decoded_run(line)
        if row is not None:
            return row
    return None


def _lines(state: str, name: str) -> Iterator[bytes]:
    """Yield the lines one by one, as a list of a file of nothing but line ends would take eight times its size."""
    try:
        data = files.read_small_regular_file(path(state, name), LARGEST)
    except (FileNotFoundError, Untrusted, ValueError):
        return
    for line in io.BytesIO(data):
        if line != b"\n":
            yield line.rstrip(b"\n")


def _time_row(value: Mapping[str, Any]) -> TimeRow:
    by_kind = value["seconds"]
    if not isinstance(by_kind, dict):
        raise ValueError("no seconds by phase")
    seconds = {name: _require_amount(by_kind.get(name, 0.0)) for name in _KINDS}
    steps, first = value["first"]
    return TimeRow(
        _require_text(value["launch"]),
        _require_text(value["node"]),
        _require_amount(value["began"]),
        _require_amount(value["t"]),
        Phase(value["phase"]),
        _require_amount(value["since"]),
        _require_count_or_none(value["begins"]),
        _require_count_or_none(value["step"]),
        (_require_count_or_none(steps) or 0, _require_amount(first)),
        _require_amount(value["slowest"]),
        seconds,
        bool(value["reports"]),
        bool(value["over"]),
        _captured(value.get("captured")),
    )


def _captured(value: Any) -> Optional[MemoryCapture]:
    if value is None:
        return None
    step, at = _require_count_or_none(value["step"]), value["at"]
    if step is None:
        raise ValueError("no step")
    sealed_at: Optional[float] = None
    if at is not None:
        sealed_at = _require_amount(at)
    return MemoryCapture(step, sealed_at, bool(value["on_storage"]))


def _run_row(value: Mapping[str, Any]) -> RunRow:
    return RunRow(
        _require_text(value["job"]),
        _require_count_or_none(value["restart"]) or 0,
        _require_amount(value["t"]),
        _require_amount(value["queued"]),
        _require_amount(value["started"]),
        _require_count_or_none(value["gpus"]),
        tuple(_require_text(name) for name in value["nodes"]),
        _require_text(value.get("user", "")),
        _require_text(value.get("partition", "")),
        _require_text(value.get("cluster", "")),
    )


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return clean_one_line(value, 200)


def _require_amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LATEST:
        raise ValueError("no amount")
    return float(value)


def _require_count_or_none(value: Any) -> Optional[int]:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("no step")
    return value
