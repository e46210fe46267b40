"""A cluster at one look: from notes of nodes, Slurm's queue and records of roots to rows. Pure.

Whatever comes from a node, a user or AWS is made one clean line of bounded length here, once, for all that show it.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Iterable, Mapping, Optional, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import STATES, MountState
from hyperpod_kit.remote.fleet.node_notes import NodeNotes, object_or_none
from hyperpod_kit.remote.metric_lines import PublishedJob, lost_seconds, parse_job_series
from hyperpod_kit.remote.report_parser import parse_mount_status, parse_slurm_findings
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.job_states import HAS_NODES, WAITS
from hyperpod_kit.untrusted.text import clean_one_line, counted

OLD = 180.0
"""Seconds after which the record of a health check counts as old: the timer runs every 30 s."""

STANDSTILL = "no progress for"
"""Begins the problem of a job that does not move."""

NO_PROGRESS = 900.0
"""Seconds without a step after which a running job is shown among what is wrong."""

SILENT_STATE = "no answer"
OLD_STATE = "old"
"""The word of a mount of which the last check is old: nothing is known of it now."""

MOST_MOUNTS = 64
NAME, DETAIL = 60, 200
"""Characters of a name, and of what is wrong."""


class Severity(enum.IntEnum):
    """How much a row is in need of a person: the first comes first."""

    FAULT = 0
    SILENT = 1
    WARNING = 2
    WELL = 3


@dataclass(frozen=True)
class MountCell:
    """A mount of a node. `state`: a MountState, or OLD_STATE; `since`: when it came into it, Unix seconds, 0.0 unknown;
    `share`: what is used of it, None where that is not known."""

    name: str
    path: str
    kind: str
    source: str
    state: str
    since: float
    required: bool
    share: Optional[float]
    used_bytes: int
    free_bytes: int
    nearly_full: bool

    @property
    def serves(self) -> bool:
        return self.state in (MountState.OK, MountState.SLOW)


@dataclass(frozen=True)
class FleetNode:
    """`name`: Slurm's, "" where AWS tells no address; `devices`: how many there are of how many; `since`: when this
    instance was set up, or begun, Unix seconds, 0.0 unknown; `step`: of its job, where it is known; `problems`: what is
    wrong, the worst first; `checked_at`: when its last health check was, by its own clock."""

    name: str
    instance_id: str
    group: str
    severity: Severity
    problems: tuple[str, ...] = ()
    mounts: tuple[MountCell, ...] = ()
    devices: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    step: Optional[int] = None
    since: float = 0.0
    bundle_id: str = ""
    checked_at: float = 0.0

    @property
    def title(self) -> str:
        """What a person calls it."""
        return self.name or self.instance_id


@dataclass(frozen=True)
class FleetJob:
    """`step_seconds`: what a step takes; `lost`: cause -> GPU-seconds; `checkpoint_at`: Unix seconds; None: not
    known."""

    id: str
    name: str = ""
    user: str = ""
    state: str = ""
    nodes: tuple[str, ...] = ()
    step: Optional[int] = None
    step_seconds: Optional[float] = None
    goodput: Optional[float] = None
    lost: Mapping[str, float] = field(default_factory=dict)
    lost_steps: Optional[int] = None
    attempts: Optional[int] = None
    checkpoint_step: Optional[int] = None
    checkpoint_at: Optional[float] = None
    severity: Severity = Severity.WELL
    problems: tuple[str, ...] = ()

    @property
    def has_nodes(self) -> bool:
        """Whether Slurm says that it holds nodes."""
        return self.state in HAS_NODES


@dataclass(frozen=True)
class FleetStorage:
    """One mount of all nodes that have it. `share`, `used_bytes`, `free_bytes`: where it is fullest, on `fullest`."""

    path: str
    name: str
    kind: str
    states: Mapping[str, int]
    share: Optional[float]
    used_bytes: int
    free_bytes: int
    fullest: str
    severity: Severity


@dataclass(frozen=True)
class FleetView:
    """`at`: Unix seconds; `not_known`: what could not be asked, and why. What is wrong stands first in each list."""

    cluster: str
    at: float
    nodes: tuple[FleetNode, ...]
    jobs: tuple[FleetJob, ...]
    storage: tuple[FleetStorage, ...]
    not_known: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether no node, job or mount has a fault, and every node answered."""
        severities = [node.severity for node in self.nodes] + [job.severity for job in self.jobs]
        return not any(severity <= Severity.SILENT for severity in severities)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "cluster": self.cluster,
            "at": self.at,
            "healthy": self.healthy,
            "nodes": [_row_to_dict(node) for node in self.nodes],
            "jobs": [_row_to_dict(job) for job in self.jobs],
            "storage": [_row_to_dict(storage) for storage in self.storage],
            "not_known": list(self.not_known),
        }


def _row_to_dict(row: FleetNode | FleetJob | FleetStorage) -> dict[str, Any]:
    return {**asdict(row), "severity": row.severity.name.lower()}


def build_fleet_view(
    cluster: str,
    at: Optional[float],
    notes: Iterable[NodeNotes],
    queue: Sequence[Mapping[str, str]] = (),
    roots: Sequence[Mapping[str, Any]] = (),
    not_known: Sequence[str] = (),
) -> FleetView:
    """Build the view. `at`: Unix seconds, None for when the newest notes were read; `notes`: taken one after the other;
    `queue`: records of squeue with FIELDS; `roots`: what
    `job status --json` told of each root."""
    series: dict[str, PublishedJob] = {}
    nodes = []
    read_at = 0.0
    for node_notes in notes:
        read_at = max(read_at, node_notes.read_at)
        nodes.append(_judge_node(node_notes))
        series.update(parse_job_series(node_notes.files.get("metrics", "")))
    if at is None:
        at = read_at
    jobs = {job.id: job for job in map(_queued_job, queue) if job is not None}
    for job_id, published in series.items():
        jobs[job_id] = _with_series(jobs.get(job_id, FleetJob(job_id)), published, at)
    for status in roots:
        for job in _jobs_of_root(status, jobs, at):
            jobs[job.id] = job
    nodes = _with_jobs(nodes, jobs.values())
    by_name = {node.name: node for node in nodes if node.name}
    judged = [_with_problems_of_nodes(job, by_name) for job in jobs.values()]
    return FleetView(
        clean_one_line(cluster, NAME),
        at,
        tuple(sorted(nodes, key=_node_order)),
        tuple(sorted(judged, key=lambda job: (job.severity, not job.has_nodes, job.id))),
        tuple(_storage_rows(nodes)),
        tuple(clean_one_line(line, DETAIL) for line in not_known),
    )


def _node_order(node: FleetNode) -> tuple[Any, ...]:
    """Faults before silence before warnings; of faults those of a required mount that hangs first."""
    hung = any(cell.state == MountState.HUNG for cell in node.mounts)
    return (node.severity, not hung, node.group, [int(part) for part in node.name.split("-")[1:] if part.isdigit()])


# --- Nodes -----------------------------------------------------------------------------------------------------------


def _judge_node(notes: NodeNotes) -> FleetNode:
    target = notes.target
    node = FleetNode(
        clean_one_line(slurm_node_name(target.address), NAME),
        clean_one_line(target.instance_id, NAME),
        clean_one_line(target.group, NAME),
        Severity.SILENT,
        since=_launch_time(notes.launched),
    )
    if notes.error:
        return replace(node, problems=(f"{SILENT_STATE}: {clean_one_line(notes.error, DETAIL)}",))
    try:
        return _judge_files(node, notes)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as err:
        return replace(node, problems=(f"its notes cannot be read: {clean_one_line(err, DETAIL)}",))


def _judge_files(node: FleetNode, notes: NodeNotes) -> FleetNode:
    health = object_or_none(notes.files.get("health"))
    devices = object_or_none(notes.files.get("devices"))
    guard = object_or_none(notes.files.get("slurm"))
    status = object_or_none(notes.files.get("status")) or {}
    now = _number(notes.files.get("clock", "")) or notes.read_at
    faults: list[str] = []
    warnings: list[str] = []
    checked_at = 0.0
    cells: tuple[MountCell, ...] = ()
    finished_at = _number(status.get("finished_at"))
    if health is None and finished_at and now - finished_at < OLD:
        warnings.append("no health check yet: it was set up just now")
    elif health is None:
        faults.append("no health check has written a record")
    else:
        checked_at = _number(health.get("checked_at"))
        is_old = now - checked_at > OLD
        if is_old:
            faults.append(f"its health checks have stopped: the last was {format_duration(now - checked_at)} ago")
        cells = _mount_cells(health, is_old)
    for cell in sorted(cells, key=lambda cell: cell.state != MountState.HUNG):
        _judge_mount(cell, now, faults, warnings)
    if status.get("ok") is False:
        faults.append("its set-up failed: hyperpod-kit diagnose")
    _judge_devices(devices, faults, warnings)
    for finding in parse_slurm_findings((guard or {}).get("findings")):
        line = f"Slurm: {clean_one_line(finding.detail, DETAIL)}"
        if finding.fault:
            faults.append(line)
        else:
            warnings.append(line)
    severity = Severity.WELL
    if warnings:
        severity = Severity.WARNING
    if faults:
        severity = Severity.FAULT
    return replace(
        node,
        severity=severity,
        problems=(*faults, *warnings),
        mounts=cells,
        devices=_device_counts(devices),
        since=finished_at or node.since,
        bundle_id=clean_one_line(status.get("bundle_id") or "", NAME),
        checked_at=checked_at,
    )


def _mount_cells(health: Mapping[str, Any], is_old: bool) -> tuple[MountCell, ...]:
    records = health.get("mounts")
    if not isinstance(records, dict):
        raise ValueError("its health record has no mounts")
    cells = []
    for record in list(records.values())[:MOST_MOUNTS]:
        status = parse_mount_status(_with_zeros(record["status"]))
        state: str = status.state
        if is_old:
            state = OLD_STATE
        cells.append(_mount_cell(status, state, _number(record.get("since"))))
    return tuple(cells)


def _with_zeros(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status in a record as a report has it: there what is not known is left out."""
    return {key: value for key, value in raw.items() if value is not None}


def _mount_cell(status: MountStatus, state: str, since: float) -> MountCell:
    share = None
    if status.used_bytes + status.free_bytes:
        share = round(status.used_share, 4)
    return MountCell(
        status.name,
        status.path,
        status.kind,
        status.source,
        state,
        since,
        status.required,
        share,
        status.used_bytes,
        status.free_bytes,
        status.nearly_full,
    )


def _judge_mount(cell: MountCell, now: float, faults: list[str], warnings: list[str]) -> None:
    if cell.state == OLD_STATE:
        return
    if not cell.serves:
        lasts = ""
        if cell.since:
            lasts = f" for {format_duration(now - cell.since)}"
        line = f"{cell.path} {cell.state}{lasts}"
        if cell.required:
            faults.append(line)
        else:
            warnings.append(f"{line} (optional)")
    elif cell.state == MountState.SLOW:
        warnings.append(f"{cell.path} slow")
    if cell.nearly_full and cell.share is not None:
        warnings.append(f"{cell.path} {int(cell.share * 100)} % full")


def _judge_devices(devices: Optional[Mapping[str, Any]], faults: list[str], warnings: list[str]) -> None:
    for finding in ((devices or {}).get("findings") or [])[:MOST_MOUNTS]:
        line = f"{clean_one_line(finding['subject'], 20)}: {clean_one_line(finding['detail'], DETAIL)}"
        if int(finding["cure"]) > 0:
            faults.append(line)
        else:
            warnings.append(line)


def _device_counts(devices: Optional[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return `8/8 GPU` and `32/32 EFA`; () where none are expected, or nobody looks at them."""
    if devices is None:
        return ()
    parts = []
    for count, expected, what in (("gpus", "gpus_expected", "GPU"), ("efas", "efas_expected", "EFA")):
        if devices.get(expected):
            present: object = "?"
            if devices.get(count) is not None:
                present = int(devices[count])
            parts.append(f"{present}/{int(devices[expected])} {what}")
    return tuple(parts)


def _with_jobs(nodes: Sequence[FleetNode], jobs: Iterable[FleetJob]) -> list[FleetNode]:
    on_node: dict[str, list[FleetJob]] = {}
    for job in jobs:
        if job.has_nodes:
            for name in job.nodes:
                on_node.setdefault(name, []).append(job)
    completed = []
    for node in nodes:
        here = on_node.get(node.name, [])
        steps = [job.step for job in here if job.step is not None]
        completed.append(replace(node, jobs=tuple(job.id for job in here), step=max(steps, default=None)))
    return completed


# --- Jobs ------------------------------------------------------------------------------------------------------------


def _queued_job(record: Mapping[str, str]) -> Optional[FleetJob]:
    state = clean_one_line(record.get("JobState", ""), NAME)
    if state not in HAS_NODES and state not in WAITS:
        return None
    try:
        nodes = tuple(clean_one_line(name, NAME) for name in expand(record.get("NodeList", "")))
    except ValueError:
        nodes = ()
    return FleetJob(
        clean_one_line(JobId.from_record(record).slurm_id, NAME),
        clean_one_line(record.get("Name", ""), NAME),
        clean_one_line(record.get("User", ""), NAME),
        state,
        nodes,
    )


def _with_series(job: FleetJob, series: PublishedJob, at: float) -> FleetJob:
    job = replace(
        job,
        goodput=series.goodput,
        attempts=series.attempts,
        lost_steps=series.lost_steps,
        step=series.step,
        step_seconds=series.step_seconds,
        lost=lost_seconds(series.spent),
        checkpoint_step=series.durable_step,
        checkpoint_at=series.durable_at,
    )
    if series.lost_saves:
        job = _with_problem(job, f"{counted(series.lost_saves, 'save', 'saves in a row')} failed", Severity.FAULT)
    return _with_standstill(job, series.moved, at)


def _with_standstill(job: FleetJob, moved: Optional[float], at: float) -> FleetJob:
    """Return the job with the problem that nothing has moved for long. `moved`: when it did, None where unknown."""
    is_named = any(problem.startswith(STANDSTILL) for problem in job.problems)
    if not moved or is_named or job.state in WAITS or at - moved <= NO_PROGRESS:
        return job
    return _with_problem(job, f"{STANDSTILL} {format_duration(at - moved)}", Severity.FAULT)


def _jobs_of_root(status: Mapping[str, Any], known: Mapping[str, FleetJob], at: float) -> list[FleetJob]:
    """Return the jobs of a root that run or wait; others are over, and nobody watches them."""
    jobs = []
    saves = status.get("saves")
    durable = _mapping(_mapping(saves).get("durable"))
    for time_of_job in status.get("time") or []:
        raw = _mapping(time_of_job)
        job_id = clean_one_line(raw.get("job", ""), NAME)
        if raw.get("state") == "over" and job_id not in known:
            continue
        job = known.get(job_id, FleetJob(job_id, state=clean_one_line(raw.get("state", ""), NAME)))
        now = _mapping(raw.get("now"))
        lost = {clean_one_line(name, 20): _number(value) for name, value in _mapping(raw.get("gpu_seconds")).items()}
        job = replace(
            job,
            step=_whole_or_none(now.get("step")),
            step_seconds=_number(now.get("step_seconds")) or None,
            lost=lost_seconds(lost),
            checkpoint_step=_whole_or_none(durable.get("step")),
            checkpoint_at=_number(durable.get("at")) or None,
        )
        if raw.get("goodput") is not None:
            job = replace(job, goodput=min(1.0, _number(raw["goodput"])))
        jobs.append(_with_progress(job, status, at))
    return jobs


def _with_progress(job: FleetJob, status: Mapping[str, Any], at: float) -> FleetJob:
    """Return the job with what its attempts tell: how many, the last step, and whether it moves."""
    attempts = [entry for entry in map(_mapping, status.get("attempts") or []) if entry.get("job") == job.id]
    if not attempts:
        return job
    last = attempts[-1]
    lost = [step for step in (_whole_or_none(attempt.get("lost")) for attempt in attempts) if step is not None]
    job = replace(job, attempts=len(attempts), lost_steps=sum(lost))
    if job.step is None:
        job = replace(job, step=_whole_or_none(last.get("reached")))
    if not job.nodes:
        job = replace(job, nodes=tuple(clean_one_line(name, NAME) for name in (last.get("nodes") or [])[:65536]))
    if last.get("kind") != "unfinished":
        return job
    return _with_standstill(job, _number(last.get("moved")), at)


def _with_problem(job: FleetJob, problem: str, severity: Severity) -> FleetJob:
    return replace(job, problems=(*job.problems, problem), severity=min(severity, job.severity))


def _with_problems_of_nodes(job: FleetJob, nodes: Mapping[str, FleetNode]) -> FleetJob:
    """Return the job; one that runs on a node with a fault has a warning."""
    sick = [name for name in job.nodes if name in nodes and nodes[name].severity <= Severity.SILENT]
    if not sick or not job.has_nodes:
        return job
    more = f" and {len(sick) - 1} more" if len(sick) > 1 else ""
    return _with_problem(job, f"node {sick[0]}{more} not healthy", Severity.WARNING)


# --- Storage ---------------------------------------------------------------------------------------------------------


def _storage_rows(nodes: Sequence[FleetNode]) -> list[FleetStorage]:
    cells: dict[tuple[str, str], list[tuple[FleetNode, MountCell]]] = {}
    for node in nodes:
        for cell in node.mounts:
            cells.setdefault((cell.path, cell.name), []).append((node, cell))
    rows = []
    for (path, name), members in cells.items():
        states = Counter(cell.state for _, cell in members)
        node, fullest = max(members, key=lambda member: member[1].share or 0.0)
        severity = Severity.WELL
        if any(cell.nearly_full or not cell.serves for _, cell in members):
            severity = Severity.WARNING
        if any(cell.required and not cell.serves for _, cell in members):
            severity = Severity.FAULT
        ordered = {state: states[state] for state in (*STATES, OLD_STATE) if states[state]}
        rows.append(
            FleetStorage(
                path,
                name,
                fullest.kind,
                ordered,
                fullest.share,
                fullest.used_bytes,
                fullest.free_bytes,
                node.title,
                severity,
            )
        )
    return sorted(rows, key=lambda row: (row.severity, -(row.share or 0.0), row.path))


# --- Values of others ------------------------------------------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """Return `45 s`, `12 min`, `3 h` or `9 d`."""
    seconds = max(0.0, seconds)
    for limit, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def _mapping(value: object) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def _number(value: object) -> float:
    """Return a number of another's; 0.0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    if not 0 <= number < 1e15:
        return 0.0
    return number


def _whole_or_none(value: object) -> Optional[int]:
    if type(value) is int and 0 <= value < 2**63:
        return value
    return None


def _launch_time(text: str) -> float:
    """Return AWS's time of a node's launch in Unix seconds, 0.0 where there is none."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
