"""Reads from the ledger of a checkpoint root its attempts, with what each lost. Pure, but for reading the ledger.

What a job's time went into is in goodput/.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit.job.goodput.time_rows import OPEN_STEP, TimeRow
from hyperpod_kit.job.records import ledger, ledger_row, state_place
from hyperpod_kit.job.step import step_note, step_retry_log
from hyperpod_kit.slurm.phase import Phase

UNFINISHED, NONE = "unfinished", "none"


@dataclass(frozen=True)
class JobAttempt:
    """One start of the ranks. Times are Unix seconds; `seconds`: how long it took.

    kind: a class of outcome.py, `unfinished` (it runs, or was ended so abruptly that no end was recorded), or
    `none` (a run of the batch script that started no rank). source, step: the checkpoint it resumed from; tier: where
    the ranks had it (memory, local, storage).
    reached: the last step that a rank is known to have completed, begins: the first one that it did. lost: steps done
    here that the next attempt of the job did again; gap: seconds from the end of this attempt to the start of the next.
    None: not known. followed: whether another attempt came after this one.
    retries: how often HyperPod started its ranks again; hyperpod: the lines in which it said what it did.
    hang: what was seen of the hang for which it was ended. moved: when the ranks of an unfinished one made progress
    last, as they report it; where: what each had reached then; noted: when `job run` wrote that down.
    """

    name: str
    job: str
    started: float
    kind: str = UNFINISHED
    source: Optional[str] = None
    step: Optional[int] = None
    nodes: Tuple[str, ...] = ()
    rejected: Tuple[Dict[str, str], ...] = ()
    ended: Optional[float] = None
    seconds: Optional[float] = None
    code: Optional[int] = None
    nodes_lost: Tuple[str, ...] = ()
    first: Optional[Dict[str, Any]] = None
    reached: Optional[int] = None
    then: str = ""
    lost: Optional[int] = None
    gap: Optional[float] = None
    followed: bool = False
    begins: Optional[int] = None
    tier: Optional[str] = None
    retries: int = 0
    hyperpod: Tuple[str, ...] = ()
    hang: str = ""
    moved: Optional[float] = None
    where: str = ""
    noted: Optional[float] = None


@dataclass(frozen=True)
class Totals:
    """The totals of one job, or of all that share a root. `wall`: seconds from the first start to the last end.

    attempts: how many there are; kinds: how many of each class; lost: steps done twice, as far as that is known, None
    when it is known of no attempt that another followed. untold: how many attempts that another followed did not record
    how far they came.
    """

    attempts: int = 0
    wall: float = 0.0
    lost: Optional[int] = 0
    kinds: Dict[str, int] = field(default_factory=dict)
    untold: int = 0


def attempts(root: str, job: str = "", complaints: Optional[List[str]] = None) -> List[JobAttempt]:
    """Return the attempts on a checkpoint root, oldest first; only those of `job` when it is named.

    `complaints`: gets a sentence for each row that is none of ours, and is left out. Raises OSError; for a root in S3
    JobError when no job has kept records of it, and CheckpointError.
    """
    state = state_place.state_directory_of_root(root)
    return attempts_in(state, ledger.read(os.path.join(state, "attempts.jsonl")), job, complaints)


def attempts_in(
    state: str, rows: Sequence[ledger.Row], job: str = "", complaints: Optional[List[str]] = None
) -> List[JobAttempt]:
    """Return the attempts as `attempts` does, of a directory of records whose ledger has these rows. Raises OSError."""
    sound = []
    for number, row in enumerate(rows, 1):
        wrong = ledger_row.problem(row)
        if wrong:
            if complaints is not None:
                complaints.append(f"row {number} of the ledger is ignored: {wrong}")
        elif not job or row.get("job") == job:
            sound.append(row)
    return fill_in_lost_steps_and_gaps(with_note(of_rows(sound), step_note.read(state)))


def with_note(job_attempts: Sequence[JobAttempt], note: Optional[step_note.StepNote]) -> List[JobAttempt]:
    """Return the attempts; one whose end is not recorded gets what `job run` has noted of its progress."""
    if note is None:
        return list(job_attempts)
    noted_attempts = []
    for attempt in job_attempts:
        if attempt.kind == UNFINISHED and attempt.name == note.attempt:
            attempt = replace(attempt, reached=note.reached, moved=note.moved, where=note.where, noted=note.written)
        noted_attempts.append(attempt)
    return noted_attempts


def with_row(attempt: JobAttempt, row: Optional[TimeRow]) -> JobAttempt:
    """Return the attempt; one at work gets what rank 0 has reported of it, where that is newer."""
    if row is None or attempt.kind != UNFINISHED:
        return attempt
    attempt = replace(attempt, noted=max(row.t, attempt.noted or 0.0))
    if row.step is None or (attempt.reached is not None and row.step <= attempt.reached):
        return attempt
    moved = row.since
    if row.phase is Phase.STEP:
        moved = row.t - row.seconds[OPEN_STEP]
    return replace(attempt, reached=row.step, moved=moved)


def of_rows(rows: Sequence[ledger.Row]) -> List[JobAttempt]:
    """Return rows of a ledger, each of them sound, as attempts, without what follows from their neighbours."""
    attempt_by_name: Dict[str, JobAttempt] = {}
    last: Dict[Tuple[Any, ...], str] = {}
    for row in rows:
        event, name = row.get("event"), row.get("attempt")
        run = (row.get("job"), row.get("restart"), row.get("life", ""))
        when = float(row.get("t") or 0.0)
        if event == "attempt" and name:
            attempt_by_name[name] = _started_attempt(row, when)
            last[run] = name
        elif event == "restored" and name in attempt_by_name and row.get("from"):
            attempt_by_name[name] = _with_restored_checkpoint(attempt_by_name[name], row)
        elif event == "hyperpod" and name in attempt_by_name:
            attempt_by_name[name] = _with_hyperpod_message(attempt_by_name[name], str(row.get("words") or ""))
        elif event == "ended" and name in attempt_by_name:
            attempt_by_name[name] = _with_end(attempt_by_name[name], row, when)
        elif event in ("gave_up", "requeue", "stopped"):
            if run not in last:
                # This run of the batch script started no rank: the row must not go to an attempt of another job.
                last[run] = _name_of_run_without_ranks(*run)
                attempt_by_name[last[run]] = JobAttempt(
                    last[run], str(run[0]), when, kind=NONE, rejected=tuple(row.get("rejected") or ())
                )
            attempt_by_name[last[run]] = replace(attempt_by_name[last[run]], then=f"{event}: {row.get('why', '')}")
    return list(attempt_by_name.values())


def _started_attempt(row: ledger.Row, when: float) -> JobAttempt:
    return JobAttempt(
        row["attempt"],
        str(row.get("job")),
        when,
        source=row.get("from"),
        step=row.get("step"),
        nodes=tuple(row.get("nodes") or ()),
        rejected=tuple(row.get("rejected") or ()),
    )


def _with_restored_checkpoint(attempt: JobAttempt, row: ledger.Row) -> JobAttempt:
    """Return the attempt with what the ranks proved and took.

    `job run` had not read it; in a retry of HyperPod's the ranks take another checkpoint.
    """
    before = {(rejection.get("attempt"), rejection.get("why")) for rejection in attempt.rejected}
    more = [
        rejection
        for rejection in row.get("rejected") or ()
        if (rejection.get("attempt"), rejection.get("why")) not in before
    ]
    return replace(
        attempt,
        source=row.get("from"),
        step=row.get("step"),
        tier=row.get("tier"),
        rejected=(*attempt.rejected, *more),
    )


def _with_hyperpod_message(attempt: JobAttempt, message: str) -> JobAttempt:
    retries = attempt.retries + (step_retry_log.RETRIED in message)
    return replace(attempt, hyperpod=(*attempt.hyperpod, message), retries=retries)


def _with_end(attempt: JobAttempt, row: ledger.Row, when: float) -> JobAttempt:
    seconds = row.get("seconds")
    # For an attempt whose batch host was lost the next run writes the row, without seconds: its end is not known.
    ended = None
    if seconds is not None:
        ended = when
    return replace(
        attempt,
        kind=str(row.get("class")),
        code=row.get("code"),
        seconds=seconds,
        ended=ended,
        nodes_lost=tuple(row.get("lost") or ()),
        first=row.get("first"),
        reached=row.get("reached"),
        begins=row.get("begins"),
        hang=str(row.get("hang") or ""),
    )


def _name_of_run_without_ranks(job: Any, restart: Any, life: Any) -> str:
    name = str(job)
    if life:
        name += "-"
    return f"{name}{life}.{restart}.-"


def fill_in_lost_steps_and_gaps(job_attempts: Sequence[JobAttempt]) -> List[JobAttempt]:
    """Return the attempts with what each lost, which the next attempt that started ranks shows."""
    completed = list(job_attempts)
    started = [index for index, attempt in enumerate(completed) if attempt.kind != NONE]
    for index, next_index in zip(started, started[1:]):
        attempt, following = completed[index], completed[next_index]
        lost = None
        if attempt.reached is not None and following.begins is not None:
            lost = max(0, attempt.reached + 1 - following.begins)  # memory may have held more than storage
        elif attempt.reached is not None and following.step is not None:
            lost = max(0, attempt.reached - following.step)
        gap = None
        if attempt.ended is not None:
            gap = round(following.started - attempt.ended, 1)
        completed[index] = replace(attempt, lost=lost, gap=gap, followed=True)
    return completed


def totals(job_attempts: Sequence[JobAttempt], now: float) -> Totals:
    """Return the totals of these attempts. `now`: the end of an attempt that still runs, Unix seconds."""
    ran = [attempt for attempt in job_attempts if attempt.kind != NONE]
    kinds: Dict[str, int] = {}
    for attempt in job_attempts:
        kinds[attempt.kind] = kinds.get(attempt.kind, 0) + 1
    if not ran:
        return Totals(len(job_attempts), kinds=kinds)
    end = now
    if ran[-1].kind != UNFINISHED:
        end = max((attempt.ended for attempt in ran if attempt.ended is not None), default=ran[-1].started)
    wall = max(0.0, end - ran[0].started)
    lost_per_attempt = [attempt.lost for attempt in ran[:-1]]
    untold = lost_per_attempt.count(None)
    lost: Optional[int] = sum(steps or 0 for steps in lost_per_attempt)
    if untold and untold == len(lost_per_attempt):
        lost = None
    return Totals(len(job_attempts), round(wall, 1), lost, kinds, untold)
