"""The time ledger of a job: from its raw logs to pieces that cover every second from its submission to its end. Pure.

What is known comes from three sides: the ledger of its root (`job run`), rank 0's rows and the runs' rows. Whether
steps lasted is judged afterwards, by the step at which the next start on the root began.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.job.decide.outcome_kind import LaunchEnd, OutcomeKind
from hyperpod_kit.job.goodput import launch_time
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.launch_time import LAUNCH, LONGEST_GAP
from hyperpod_kit.job.goodput.pieces import PieceRow, TimePiece
from hyperpod_kit.job.goodput.time_rows import RunRow, TimeRow
from hyperpod_kit.job.goodput.time_table import table_of

Row = Mapping[str, Any]
RunKey = Tuple[str, str, int]
"""Job, its life, and how often it was requeued."""

SILENT = 1.5 * LONGEST_GAP
"""Seconds without a row after which a rank does not live as far as anybody can see."""

NOT_YET = 3600.0
"""Seconds in which a program that has not said anything yet may be starting."""

BATCH_SCRIPT = "batch script"

_SAME_START = 2.0
"""Seconds between two words of Slurm's about one start."""

_ENDS_OF_RUNS = ("gave_up", "requeue", "stopped")


class JobState(enum.Enum):
    """What Slurm has a job as."""

    WAITS = "waits"
    RUNS = "runs"
    OVER = "over"


class JobStanding(NamedTuple):
    """`since`: when it came into the queue, or when it ended, Unix seconds, 0 where Slurm does not say; `restart`: how
    often it was requeued, `started`: when its last run got its nodes, where Slurm says so."""

    state: JobState
    since: float = 0.0
    restart: Optional[int] = None
    started: float = 0.0

    def may_describe_job_of_run(self, run: RunLog) -> bool:
        """Whether it may be of the job whose last run this is: Slurm gives a number again after it has lost its state,
        and what it says then is of another job."""
        if self.restart is None or self.restart > run.key[2]:
            return True
        if self.restart < run.key[2] or self.state is JobState.WAITS:
            return False
        recorded_start = run.row.started if run.row is not None else 0.0
        return not recorded_start or not self.started or abs(self.started - recorded_start) <= _SAME_START


@dataclass
class AttemptLog:
    """An attempt, as the ledger and rank 0 know it. `ended`: None where nobody saw it, `kind`: a class of outcome.py,
    "" while none is known; `reached`, `begins`: as in timeline.JobAttempt."""

    name: str
    run: RunKey
    t: float
    nodes: Tuple[str, ...] = ()
    kind: str = ""
    ended: Optional[float] = None
    lost: Tuple[str, ...] = ()
    reached: Optional[int] = None
    begins: Optional[int] = None
    rows: Sequence[TimeRow] = ()
    retried: bool = False

    @property
    def first_step(self) -> Optional[int]:
        """The step that it began with; None where it did none, or nobody knows."""
        first_steps = [row.begins for row in self.rows if row.begins is not None]
        return min(first_steps) if first_steps else self.begins


@dataclass
class RunLog:
    """A run of the batch script. `first`, `last`: of what the ledger says of it, Unix seconds; `word`: its last event,
    where that says that it ends; `row`: None where nobody wrote one."""

    key: RunKey
    first: float
    last: float
    word: str = ""
    row: Optional[RunRow] = None
    attempts: List[AttemptLog] = field(default_factory=list)


@dataclass(frozen=True)
class JobTime:
    """pieces: the whole of its time. unknown: what no row can have, in words. runs: of its batch script. running:
    whether it is at work, as far as that is known."""

    job: str
    pieces: Sequence[TimePiece] = ()
    caveats: Tuple[str, ...] = ()
    runs: Sequence[RunLog] = ()
    state: JobState = JobState.OVER
    unit: str = "gpu"

    @property
    def current(self) -> Optional[TimeRow]:
        """What rank 0 of the attempt at work wrote last; None where none is at work, or it has written nothing."""
        last = self.runs[-1].attempts[-1] if self.runs and self.runs[-1].attempts else None
        if self.state is not JobState.RUNS or last is None or last.ended is not None or not last.rows:
            return None
        return last.rows[-1]

    def _now(self) -> Optional[Dict[str, Any]]:
        row = self.current
        if row is None:
            return None
        return {
            "at": row.t,
            "phase": row.phase.value,
            "step": row.step,
            "step_seconds": launch_time.usual_step(row),
            "memory": row.captured._asdict() if row.captured is not None else None,
        }

    def to_dict(self) -> Dict[str, Any]:
        """For --json: the table, what it covers, and how far the attempt at work is."""
        table = table_of(self.pieces)
        ends = (self.pieces[0].start, self.pieces[-1].end) if self.pieces else (None, None)
        return {
            "state": self.state.value,
            "since": ends[0],
            "until": ends[1],
            "unit": self.unit,
            **table.to_dict(),
            "now": self._now(),
            "not_known": list(self.caveats),
        }


def run_key(row: Row) -> RunKey:
    """The run of the batch script that a row of the ledger is of."""
    return (str(row.get("job")), str(row.get("life") or ""), int(row.get("restart") or 0))


def logs_of(
    rows: Sequence[Row], times: Mapping[str, Sequence[TimeRow]], run_rows: Mapping[RunKey, RunRow]
) -> List[RunLog]:
    """Every run on a root, in order, from the rows of its ledger."""
    runs: Dict[RunKey, RunLog] = {}
    attempts: Dict[str, AttemptLog] = {}

    def run_of(row: Row, t: float, word: str) -> RunLog:
        """The run that goes on at `t`."""
        key = run_key(row)
        run = runs.setdefault(key, RunLog(key, t, t, row=run_rows.get(key)))
        run.last, run.word = max(run.last, t), word
        return run

    for row in rows:
        event, name, t = row.get("event"), row.get("attempt"), float(row.get("t") or 0.0)
        if event == "attempt" and name:
            run = run_of(row, t, "")
            attempts[name] = AttemptLog(name, run.key, t, tuple(row.get("nodes") or ()), rows=times.get(name, ()))
            run.attempts.append(attempts[name])
        elif event == "ended" and name in attempts:
            _end(attempts[name], row, t)
            own_run = runs.get(run_key(row))
            if attempts[name].ended is not None and own_run is not None:
                own_run.last = max(own_run.last, t)
        elif event == "hyperpod" and name in attempts:
            attempts[name].retried = True
        elif event in _ENDS_OF_RUNS:
            run_of(row, t, event)
    for key, run_row in run_rows.items():
        if key not in runs:
            runs[key] = RunLog(key, run_row.t, run_row.t, row=run_row)
    return sorted(runs.values(), key=lambda run: run.first)


def _end(attempt: AttemptLog, row: Row, t: float) -> None:
    attempt.kind, attempt.lost = str(row.get("class") or ""), tuple(row.get("lost") or ())
    attempt.reached, attempt.begins = row.get("reached"), row.get("begins")
    # The row of one whose batch host was lost is written by the next run.
    attempt.ended = t if row.get("seconds") is not None else None


def account(runs: Sequence[RunLog], job: str, now: float, standing: Optional[JobStanding] = None) -> JobTime:
    """The time of one job among all runs of a root. `now`: Unix seconds, up to which one that runs is shown.
    `standing`: None where nobody asked Slurm."""
    job_runs = _of_newest_life([run for run in runs if run.key[0] == job])
    if not job_runs:
        return JobTime(job)
    if standing is not None and not standing.may_describe_job_of_run(job_runs[-1]):
        standing = None
    state = _state(job_runs[-1], now, standing)
    ends = [
        *(_end_of(run, following) for run, following in zip(job_runs, job_runs[1:])),
        _last_end(job_runs[-1], now, state, standing),
    ]
    unit = "gpu" if all(run.row is not None and run.row.gpus for run in job_runs) else "node"
    steps = _StepFacts(_redone_from_step_by_attempt(runs), _reports(runs))
    pieces: List[TimePiece] = []
    at = _submitted(job_runs[0])
    before: Optional[RunLog] = None
    for run, end in zip(job_runs, ends):
        laid = PieceRow(at, max(at, end))
        laid.append_piece_until(_begin(run), _waiting_after(before))
        allocated_at = laid.end
        _lay_pieces_of_run(laid, run, end, steps, state is JobState.RUNS and run is job_runs[-1])
        weight = _weight(run, unit)
        pieces += [piece._replace(gpus=weight if piece.start >= allocated_at else 0) for piece in laid.pieces]
        at, before = laid.end, run
    if state is JobState.WAITS and now > at:
        pieces.append(TimePiece(at, now, _waiting_after(before)))
    return JobTime(job, pieces, _caveats_of_runs(job_runs), job_runs, state, unit)


class _StepFacts(NamedTuple):
    """Of all runs on a root. `kept`: attempt -> the step from which on a later one did its steps again; `reports`:
    whether any program on it says what it does."""

    kept: Mapping[str, int]
    reports: bool


def _reports(runs: Sequence[RunLog]) -> bool:
    return any(row.reports for run in runs for attempt in run.attempts for row in attempt.rows[-1:])


def _of_newest_life(runs: List[RunLog]) -> List[RunLog]:
    """Slurm gives numbers again once its controller has lost its state."""
    return [run for run in runs if run.key[1] == runs[-1].key[1]]


def _submitted(run: RunLog) -> float:
    """When a job whose first run this is came into the queue; when it began where nobody knows that."""
    return run.row.queued if run.row is not None and run.row.queued else _begin(run)


def _begin(run: RunLog) -> float:
    """When it got its nodes."""
    return min(run.first, run.row.started) if run.row and run.row.started else run.first


def _state(run: RunLog, now: float, standing: Optional[JobStanding]) -> JobState:
    if standing is not None:
        return standing.state
    if run.word:
        return JobState.WAITS if run.word == "requeue" else JobState.OVER
    if run.attempts and run.attempts[-1].kind == OutcomeKind.DONE.value:
        return JobState.OVER
    last_row_time = max((attempt.rows[-1].t for attempt in run.attempts if attempt.rows), default=run.last)
    return JobState.RUNS if now - max(last_row_time, run.last) < SILENT else JobState.OVER


def _end_of(run: RunLog, following: RunLog) -> float:
    if following.row is not None and following.row.queued:
        return max(run.last, following.row.queued)
    return run.last if run.word or (run.attempts and run.attempts[-1].ended) else _begin(following)


def _last_end(run: RunLog, now: float, state: JobState, standing: Optional[JobStanding]) -> float:
    """Of the last run."""
    if state is JobState.RUNS:
        return now
    if standing is not None and standing.since:
        return min(now, max(run.last, standing.since))
    unseen = [attempt for attempt in run.attempts if attempt.ended is None]
    presumed_ends = [row.t + (0.0 if row.over else LONGEST_GAP) for attempt in unseen for row in attempt.rows[-1:]]
    return min(now, max([run.last, *presumed_ends]))


def _waiting_after(before: Optional[RunLog]) -> TimeCause:
    """What a job waits for that is in the queue, after this run."""
    last = before.attempts[-1] if before is not None and before.attempts else None
    lost = last is not None and _launch_end_of(last) is LaunchEnd.LOST
    return TimeCause.NODES if lost else TimeCause.QUEUE


def _lay_pieces_of_run(piece_row: PieceRow, run: RunLog, end: float, step_facts: _StepFacts, is_running: bool) -> None:
    """While it held its nodes."""
    for number, attempt in enumerate(run.attempts):
        piece_row.append_piece_until(
            attempt.t, *((TimeCause.BACK_OFF, "") if number else (TimeCause.START_UP, BATCH_SCRIPT))
        )
        is_last = number + 1 == len(run.attempts)
        over = attempt.ended if attempt.ended is not None else end if is_last else run.attempts[number + 1].t
        at_work = is_running and is_last and attempt.ended is None
        start = len(piece_row.pieces)
        _lay_pieces_of_attempt(piece_row, attempt, over, step_facts.kept.get(attempt.name), step_facts.reports, at_work)
        piece_row.pieces[start:] = [
            piece._replace(attempt=attempt.name, nodes=attempt.nodes) for piece in piece_row.pieces[start:]
        ]
    if not run.attempts:
        piece_row.append_piece_until(end, TimeCause.START_UP, BATCH_SCRIPT)
    elif run.word or not is_running:
        piece_row.append_piece_until(end, TimeCause.CLOSE)
    else:
        piece_row.append_piece_until(end, TimeCause.BACK_OFF)


def _lay_pieces_of_attempt(
    piece_row: PieceRow,
    attempt: AttemptLog,
    end: float,
    redone_from_step: Optional[int],
    any_program_reports: bool,
    at_work: bool,
) -> None:
    ending = LaunchEnd.RUNS if at_work else _launch_end_of(attempt)
    launches = _launches(attempt.rows)
    if not launches:
        piece_row.append_piece_until(end, TimeCause.UNATTRIBUTED)
        return
    for number, rows in enumerate(launches):
        waited = (TimeCause.NODES, "") if attempt.retried else (TimeCause.BACK_OFF, "")
        piece_row.append_piece_until(rows[0].began, *(waited if number else (TimeCause.START_UP, LAUNCH)))
        if number + 1 == len(launches):
            _lay_pieces_of_launch(
                piece_row,
                rows,
                redone_from_step,
                _ending_or_peer_lost(ending, rows[-1], attempt),
                end,
                any_program_reports,
            )
        else:
            following = launches[number + 1][0]
            how = LaunchEnd.CRASHED if rows[-1].over or following.node == rows[-1].node else LaunchEnd.LOST
            launch_end_time = rows[-1].t if rows[-1].over else min(following.began, rows[-1].t + LONGEST_GAP)
            _lay_pieces_of_launch(piece_row, rows, redone_from_step, how, launch_end_time, any_program_reports)


def _lay_pieces_of_launch(
    piece_row: PieceRow,
    rows: Sequence[TimeRow],
    redone_from_step: Optional[int],
    ending: LaunchEnd,
    end: float,
    any_program_reports: bool,
) -> None:
    last = rows[-1]
    if not last.reports and not _is_starting(last, any_program_reports, ending):
        piece_row.append_piece_until(end, TimeCause.UNATTRIBUTED)
        return
    if ending is LaunchEnd.RUNS and end - last.t > SILENT:
        ending = LaunchEnd.LOST
    piece_row.add(launch_time.pieces_of(rows, redone_from_step, ending, end, piece_row.end))


def _launch_end_of(attempt: AttemptLog) -> LaunchEnd:
    """Return how an attempt's last launch ended; one of a class that nobody knows was lost."""
    kind = OutcomeKind.parse(attempt.kind)
    return kind.launch_end if kind is not None else LaunchEnd.LOST


def _ending_or_peer_lost(ending: LaunchEnd, row: TimeRow, attempt: AttemptLog) -> LaunchEnd:
    """Where `job run` saw the end and rank 0's node was well, a rank wrote all that it did."""
    is_end_observed = attempt.ended is not None and row.node not in attempt.lost
    return LaunchEnd.PEER_LOST if ending is LaunchEnd.LOST and is_end_observed else ending


def _is_starting(row: TimeRow, reports: bool, how: LaunchEnd) -> bool:
    """Whether a program that has said nothing was still starting, and is not one that never says anything."""
    return reports or (how is LaunchEnd.RUNS and row.t - row.began < NOT_YET)


def _launches(rows: Sequence[TimeRow]) -> List[List[TimeRow]]:
    """Rows of one process after the other, each in order."""
    rows_by_process: Dict[Tuple[str, float], List[TimeRow]] = {}
    for row in rows:
        rows_by_process.setdefault((row.launch, row.began), []).append(row)
    launches = [sorted(group, key=lambda row: row.t) for group in rows_by_process.values()]
    return sorted(launches, key=lambda group: group[0].began)


def _redone_from_step_by_attempt(runs: Sequence[RunLog]) -> Dict[str, int]:
    """Attempt -> the step from which on a later one did its steps again. What a finished job did has lasted."""
    attempts = [attempt for run in runs for attempt in run.attempts]
    step_by_attempt: Dict[str, int] = {}
    least: Optional[int] = None
    for attempt in reversed(attempts):
        if attempt.kind == OutcomeKind.DONE.value:
            least = None
        if least is not None:
            step_by_attempt[attempt.name] = least
        first = attempt.first_step
        if first is not None:
            least = first if least is None else min(least, first)
    return step_by_attempt


def _weight(run: RunLog, unit: str) -> int:
    """GPUs that it held; nodes where nobody knows how many those have, or where they have none."""
    if unit == "gpu" and run.row is not None and run.row.gpus:
        return run.row.gpus
    nodes = len(run.row.nodes) if run.row is not None else 0
    return nodes or max((len(attempt.nodes) for attempt in run.attempts), default=0) or 1


def _caveats_of_runs(runs: Sequence[RunLog]) -> Tuple[str, ...]:
    caveats = []
    if any(run.row is None or not run.row.queued for run in runs):
        caveats.append("how long it waited in the queue is not known")
    if any(run.row is None or run.row.gpus is None for run in runs):
        caveats.append("how many GPUs it held is not known")
    return tuple(caveats)
