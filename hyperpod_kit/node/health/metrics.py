"""The last checks as a file for the node exporter's textfile collector. Pure: numbers in, text out.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.observe.health_record import HealthRecord

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.agent.shm.failure_note import FoundNote
    from hyperpod_kit.checkpoint.agent.shm.job_note import FoundJob

FILE = "hyperpod_kit.prom"

Sample = Tuple[Mapping[str, str], float]


def render_metrics(
    node: Node,
    records: Mapping[str, HealthRecord],
    check_seconds: float,
    *,
    records_kept: bool = True,
    is_munged_running: Optional[bool] = None,
    saves: Sequence[FoundNote] = (),
    jobs: Sequence[FoundJob] = (),
    unprotected_count: int = 0,
    are_rules_in_force: Optional[bool] = None,
) -> str:
    """Render all series of this node. `check_seconds`: how long the check took; `records_kept`: whether its
    records could be saved; `is_munged_running`: None where munged is not expected; `saves`: how the saves
    of runs here fare; `jobs`: how jobs fare whose scripts run here; `unprotected_count`: how many mounts
    lack nosuid or nodev; `are_rules_in_force`: whether the packet rules hold, None where none are expected.

    When it was made is not among them: the exporter adds it for every file, as node_textfile_mtime_seconds.
    """
    named = [(_mount_labels(name, record), record) for name, record in records.items()]
    lines: List[str] = []
    lines += _format_metric(
        "hyperpod_kit_mount_state",
        "gauge",
        "1 for the state that the mount is in.",
        [({**labels, "state": record.state}, 1) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_mount_healthy",
        "gauge",
        "Whether a job can use the mount.",
        [(labels, record.is_usable_by_jobs) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_mount_degraded",
        "gauge",
        "Whether too many checks in a row have failed.",
        [(labels, record.degraded) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_mount_failed_checks",
        "gauge",
        "Failed checks in a row.",
        [(labels, record.failures) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_mount_latency_seconds",
        "gauge",
        "Of stat and statvfs at the last whole check.",
        [(labels, float(record.status.get("latency_ms", 0.0)) / 1000) for labels, record in named],
    )
    lines += _capacity_metrics(named)
    lines += _format_metric(
        "hyperpod_kit_mount_repairs_total",
        "counter",
        "Repairs ordered since boot.",
        [(labels, record.repairs_total) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_mount_failed_repairs_total",
        "counter",
        "Repairs since boot that failed.",
        [(labels, record.failed_repairs_total) for labels, record in named],
    )
    lines += _format_metric(
        "hyperpod_kit_health_seconds", "gauge", "How long the last whole check took.", [({}, check_seconds)]
    )
    lines += _format_metric(
        "hyperpod_kit_health_kept", "gauge", "Whether the results of the checks can be stored.", [({}, records_kept)]
    )
    lines += _format_metric(
        "hyperpod_kit_unprotected_mounts",
        "gauge",
        "Mounts with content of other users without nosuid and nodev.",
        [({}, unprotected_count)],
    )
    if are_rules_in_force is not None:
        lines += _format_metric(
            "hyperpod_kit_packet_rules",
            "gauge",
            "Whether NFS and the role are closed to users.",
            [({}, are_rules_in_force)],
        )
    if is_munged_running is not None:
        lines += _format_metric(
            "hyperpod_kit_munged_runs",
            "gauge",
            "Whether munged runs, which all of Slurm needs.",
            [({}, is_munged_running)],
        )
    if saves:
        durable = [(_run_labels(saves_note), saves_note.note.durable_at) for saves_note in saves]
        lines += _format_metric(
            "hyperpod_kit_checkpoint_durable_timestamp_seconds",
            "gauge",
            "When the newest save of this start was seen on storage.",
            [(labels, at) for labels, at in durable if at is not None],
        )
        lines += _format_metric(
            "hyperpod_kit_checkpoint_lost_saves",
            "gauge",
            "Saves in a row that failed.",
            [(_run_labels(saves_note), saves_note.note.lost_in_row) for saves_note in saves],
        )
        steps = [(_run_labels(saves_note), saves_note.note.durable_step) for saves_note in saves]
        lines += _format_metric(
            "hyperpod_kit_checkpoint_durable_step",
            "gauge",
            "The step of the newest save of this start on storage.",
            [(labels, step) for labels, step in steps if step is not None],
        )
    if jobs:
        lines += _job_metrics(jobs)
    lines += _format_metric(
        "hyperpod_kit_bundle_info",
        "gauge",
        "The bundle that this node runs.",
        [({"bundle_id": node.bundle_id, "role": node.facts.role}, 1)],
    )
    return "\n".join(lines) + "\n"


_ROOM = (
    ("hyperpod_kit_mount_used_bytes", "used_bytes", "Bytes in use."),
    ("hyperpod_kit_mount_free_bytes", "free_bytes", "Bytes that ordinary users can still have."),
    ("hyperpod_kit_mount_used_files", "used_files", "Inodes in use."),
    ("hyperpod_kit_mount_free_files", "free_files", "Inodes that ordinary users can still have."),
)
"""Of a mount, with its place in the record."""


def _capacity_metrics(named: Sequence[Tuple[Mapping[str, str], HealthRecord]]) -> Iterable[str]:
    """Render how full the mounts are; no series of one whose capacity is unknown."""
    for name, key, help_text in _ROOM:
        what = key.partition("_")[2]
        measured = [
            (labels, float(record.status[key]))
            for labels, record in named
            if record.status.get(f"used_{what}") or record.status.get(f"free_{what}")
        ]
        yield from _format_metric(name, "gauge", help_text, measured)
    yield from _format_metric(
        "hyperpod_kit_mount_nearly_full",
        "gauge",
        "Whether it was 80 % full, and has not been below 75 % since.",
        [(labels, record.nearly_full) for labels, record in named],
    )


def _job_metrics(jobs: Sequence[FoundJob]) -> Iterable[str]:
    """Render how jobs fare, by the notes of their `job run`; no series of what is unknown."""
    named = [({"job_id": job.note.job, "uid": str(job.uid)}, job.note) for job in jobs]
    yield from _format_metric(
        "hyperpod_kit_job_attempts",
        "gauge",
        "Attempts of the job so far, in all runs of its script.",
        [(labels, note.attempts) for labels, note in named],
    )
    yield from _format_metric(
        "hyperpod_kit_job_attempt_started_timestamp_seconds",
        "gauge",
        "When the attempt began that runs now.",
        [(labels, note.started) for labels, note in named if note.started is not None],
    )
    yield from _format_metric(
        "hyperpod_kit_job_lost_steps",
        "gauge",
        "Steps that were done twice, as far as known.",
        [(labels, note.lost_steps) for labels, note in named if note.lost_steps is not None],
    )
    yield from _format_metric(
        "hyperpod_kit_job_goodput_ratio",
        "gauge",
        "Share of the job's GPU time that was spent on steps that lasted.",
        [(labels, note.goodput) for labels, note in named if note.goodput is not None],
    )
    steps = [({"job_id": job.note.job, "uid": str(job.uid)}, job.step) for job in jobs if job.step is not None]
    yield from _format_metric(
        "hyperpod_kit_job_step",
        "gauge",
        "The last step that rank 0 of the running attempt has completed, counted once a minute.",
        [(labels, step_note.step) for labels, step_note in steps],
    )
    yield from _format_metric(
        "hyperpod_kit_job_moved_timestamp_seconds",
        "gauge",
        "When rank 0 last moved: the end of that step, or later where it saves or evaluates.",
        [(labels, step_note.moved) for labels, step_note in steps],
    )
    yield from _format_metric(
        "hyperpod_kit_job_step_seconds",
        "gauge",
        "Seconds of a usual step of the running attempt.",
        [(labels, step_note.step_seconds) for labels, step_note in steps if step_note.step_seconds is not None],
    )
    yield from _format_metric(
        "hyperpod_kit_job_ended_attempts",
        "gauge",
        "Attempts by how they ended.",
        [({**labels, "class": name}, count) for labels, note in named for name, count in note.ends.items()],
    )
    yield from _format_metric(
        "hyperpod_kit_job_gpu_seconds_total",
        "counter",
        "GPU-seconds of this run of the script by what they went into; steps less twice are those that lasted.",
        _gpu_second_samples(jobs),
    )


def _gpu_second_samples(jobs: Sequence[FoundJob]) -> Iterator[Sample]:
    for job in jobs:
        if job.time is None:
            continue
        for cause, seconds in job.time.gpu_seconds.items():
            yield {"job_id": job.note.job, "uid": str(job.uid), "cause": cause}, seconds


def _mount_labels(name: str, record: HealthRecord) -> Mapping[str, str]:
    status = record.status
    return {
        "mount": name,
        "kind": str(status.get("kind", "")),
        "path": str(status.get("path", "")),
        "required": "true" if status.get("required", True) else "false",
    }


def _run_labels(found_note: FoundNote) -> Mapping[str, str]:
    return {
        "run": found_note.note.run,
        "id": found_note.run_hash,
        "uid": str(found_note.uid),
        "job_id": found_note.note.job,
    }


def _format_metric(name: str, kind: str, help: str, samples: Iterable[Sample]) -> Iterable[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"
    label_sets: Set[str] = set()
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escape_label_value(word)}"' for key, word in labels.items())
        if inner in label_sets:
            continue  # two notes of a user may say the same of themselves, and a series twice is an error for all
        label_sets.add(inner)
        series = name
        if inner:
            series = f"{name}{{{inner}}}"
        yield f"{series} {_format_number(value)}"


def _escape_label_value(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.6f}".rstrip("0")
