"""The time ledger of a job: from its raw logs to pieces that cover every second from its submission to its end. Pure.

The raw logs are the ledger of the job's root (`job run`), rank 0's rows and the runs' rows. Whether steps lasted is
decided afterwards, by the step at which the next start on the root began.

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
"""The job, its life, and how often it was requeued."""

SILENT = 1.5 * LONGEST_GAP
"""Seconds without a row after which a rank counts as dead."""

NOT_YET = 3600.0
"""Seconds in which a program that has reported nothing yet may still be starting."""

BATCH_SCRIPT = "batch script"

_SAME_START = 2.0
"""Most seconds between two times that Slurm gives for one start."""

_ENDS_OF_RUNS = ("gave_up", "requeue", "stopped")


class JobState(enum.Enum):
    """The state of a job in Slurm."""

    WAITS = "waits"
    RUNS = "runs"
    OVER = "over"


class JobStanding(NamedTuple):
    """What Slurm reports of a job.

    `since`: when it came into the queue, or when it ended, Unix seconds, 0 where Slurm does not report it; `restart`:
    how often it was requeued, None where Slurm does not report it; `started`: when its last run got its nodes, Unix
    seconds, 0 where Slurm does not report it.
    """

    state: JobState
    since: float = 0.0
    restart: Optional[int] = None
    started: float = 0.0

    def may_describe_job_of_run(self, run: RunLog) -> bool:
        """Return whether it may describe the job with this last run.

        Slurm reuses the numbers of jobs after it has lost its state, and then describes another job.
        """
        if self.restart is None or self.restart > run.key[2]:
            return True
        if self.restart < run.key[2] or self.state is JobState.WAITS:
            return False
        recorded_start = 0.0
        if run.row is not None:
            recorded_start = run.row.started
        if not recorded_start or not self.started:
            return True
        return abs(self.started - recorded_start) <= _SAME_START


@dataclass
class AttemptLog:
    """An attempt by the ledger and rank 0's rows.

    `t`: when it began; `ended`: None where its end was not observed; `kind`: a class of outcome.py, "" while none is
    known; `lost`: the nodes that were lost; `reached`, `begins`: as in timeline.JobAttempt; `rows`: rank 0's.
    """

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
        """The step that it began with; None where it did none, or none is known."""
        first_steps = [row.begins for row in self.rows if row.begins is not None]
        if first_steps:
            return min(first_steps)
        return self.begins


@dataclass
class RunLog:
    """A run of the batch script.

    `first`, `last`: the earliest and the latest time of it in the ledger, Unix seconds; `word`: its last event where
    that ends the run, otherwise ""; `row`: None where none was written.
    """

    key: RunKey
    first: float
    last: float
    word: str = ""
    row: Optional[RunRow] = None
    attempts: List[AttemptLog] = field(default_factory=list)


@dataclass(frozen=True)
class JobTime:
    """The time of a job.

    `pieces`: all of its time; `caveats`: sentences about what the logs do not contain; `runs`: of its batch script;
    `state`: as far as it is known; `unit`: what the `gpus` of its pieces count, "gpu" or "node".
    """

    job: str
    pieces: Sequence[TimePiece] = ()
    caveats: Tuple[str, ...] = ()
    runs: Sequence[RunLog] = ()
    state: JobState = JobState.OVER
    unit: str = "gpu"

    @property
    def current(self) -> Optional[TimeRow]:
        """The last row of rank 0 of the running attempt; None where none is running, or it has written nothing."""
        if self.state is not JobState.RUNS or not self.runs or not self.runs[-1].attempts:
            return None
        attempt = self.runs[-1].attempts[-1]
        if attempt.ended is not None or not attempt.rows:
            return None
        return attempt.rows[-1]

    def _now(self) -> Optional[Dict[str, Any]]:
        row = self.current
        if row is None:
            return None
        memory: Optional[Dict[str, Any]] = None
        if row.captured is not None:
            memory = row.captured._asdict()
        return {
            "at": row.t,
            "phase": row.phase.value,
            "step": row.step,
            "step_seconds": launch_time.usual_step(row),
            "memory": memory,
        }

    def to_dict(self) -> Dict[str, Any]:
        """Return the job for --json: the table, the time that it covers, and the progress of the running attempt."""
        table = table_of(self.pieces)
        since: Optional[float] = None
        until: Optional[float] = None
        if self.pieces:
            since, until = self.pieces[0].start, self.pieces[-1].end
        return {
            "state": self.state.value,
            "since": since,
            "until": until,
            "unit": self.unit,
            **table.to_dict(),
            "now": self._now(),
            "not_known": list(self.caveats),
        }


def run_key(row: Row) -> RunKey:
    """Return the run of the batch script that a row of the ledger belongs to."""
    return (str(row.get("job")), str(row.get("life") or ""), int(row.get("restart") or 0))


def logs_of(
    rows: Sequence[Row], times: Mapping[str, Sequence[TimeRow]], run_rows: Mapping[RunKey, RunRow]
) -> List[RunLog]:
    """Return every run on a root in order of time.

    `rows`: of the ledger; `times`: attempt -> rank 0's rows; `run_rows`: run -> its row.
    """
    runs: Dict[RunKey, RunLog] = {}
    attempts: Dict[str, AttemptLog] = {}

    def run_of(row: Row, t: float, word: str) -> RunLog:
        """Return the run of a row, extended to `t`, with its last event."""
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
            _extend_run_to_end(runs.get(run_key(row)), attempts[name], t)
        elif event == "hyperpod" and name in attempts:
            attempts[name].retried = True
        elif event in _ENDS_OF_RUNS:
            run_of(row, t, event)
    for key, run_row in run_rows.items():
        if key not in runs:
            runs[key] = RunLog(key, run_row.t, run_row.t, row=run_row)
    return sorted(runs.values(), key=lambda run: run.first)


def _end(attempt: AttemptLog, row: Row, t: float) -> None:
    """Take over the end of an attempt from its row."""
    attempt.kind, attempt.lost = str(row.get("class") or ""), tuple(row.get("lost") or ())
    attempt.reached, attempt.begins = row.get("reached"), row.get("begins")
    # The row of one whose batch host was lost is written by the next run.
    attempt.ended = None
    if row.get("seconds") is not None:
        attempt.ended = t


def _extend_run_to_end(run: Optional[RunLog], attempt: AttemptLog, t: float) -> None:
    """Extend the run of the row at `t` to it, where that is when the attempt ended."""
    if attempt.ended is not None and run is not None:
        run.last = max(run.last, t)


def account(runs: Sequence[RunLog], job: str, now: float, standing: Optional[JobStanding] = None) -> JobTime:
    """Return the time of one job among all runs of a root.

    `now`: Unix seconds, up to which a running job is shown; `standing`: None where Slurm was not queried.
    """
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
    unit = _unit(job_runs)
    steps = _StepFacts(_redone_from_step_by_attempt(runs), _reports(runs))
    pieces: List[TimePiece] = []
    at = _submitted(job_runs[0])
    before: Optional[RunLog] = None
    for run, end in zip(job_runs, ends):
        laid = PieceRow(at, max(at, end))
        laid.append_piece_until(_begin(run), _waiting_after(before))
        allocated_at = laid.end
        _lay_pieces_of_run(laid, run, end, steps, state is JobState.RUNS and run is job_runs[-1])
        pieces += _weighted(laid.pieces, allocated_at, _weight(run, unit))
        at, before = laid.end, run
    if state is JobState.WAITS and now > at:
        pieces.append(TimePiece(at, now, _waiting_after(before)))
    return JobTime(job, pieces, _caveats_of_runs(job_runs), job_runs, state, unit)


class _StepFacts(NamedTuple):
    """Facts about all runs on a root.

    `kept`: attempt -> the first of its steps that a later one did again; `reports`: whether any program on the root
    reports its phases.
    """

    kept: Mapping[str, int]
    reports: bool


def _reports(runs: Sequence[RunLog]) -> bool:
    """Return whether the last row of any attempt is of a program that reports its phases."""
    for run in runs:
        for attempt in run.attempts:
            if attempt.rows and attempt.rows[-1].reports:
                return True
    return False


def _of_newest_life(runs: List[RunLog]) -> List[RunLog]:
    """Return the runs of the newest life: Slurm reuses numbers of jobs once its controller has lost its state."""
    return [run for run in runs if run.key[1] == runs[-1].key[1]]


def _submitted(run: RunLog) -> float:
    """Return when the job with this first run came into the queue, or when the run began where that is not known."""
    if run.row is not None and run.row.queued:
        return run.row.queued
    return _begin(run)


def _begin(run: RunLog) -> float:
    """Return when the run got its nodes."""
    if run.row is not None and run.row.started:
        return min(run.first, run.row.started)
    return run.first


def _state(run: RunLog, now: float, standing: Optional[JobStanding]) -> JobState:
    """Return the state of the job with this last run: by Slurm where it was queried, otherwise by the logs."""
    if standing is not None:
        return standing.state
    if run.word == "requeue":
        return JobState.WAITS
    if run.word:
        return JobState.OVER
    if run.attempts and run.attempts[-1].kind == OutcomeKind.DONE.value:
        return JobState.OVER
    last_row_time = max((attempt.rows[-1].t for attempt in run.attempts if attempt.rows), default=run.last)
    if now - max(last_row_time, run.last) < SILENT:
        return JobState.RUNS
    return JobState.OVER


def _end_of(run: RunLog, following: RunLog) -> float:
    """Return when a run ended that another one follows."""
    if following.row is not None and following.row.queued:
        return max(run.last, following.row.queued)
    is_last_attempt_over = bool(run.attempts and run.attempts[-1].ended)
    if run.word or is_last_attempt_over:
        return run.last
    return _begin(following)


def _last_end(run: RunLog, now: float, state: JobState, standing: Optional[JobStanding]) -> float:
    """Return when the last run ended, `now` for one that runs."""
    if state is JobState.RUNS:
        return now
    if standing is not None and standing.since:
        return min(now, max(run.last, standing.since))
    ends = [run.last]
    for attempt in run.attempts:
        if attempt.ended is None and attempt.rows:
            ends.append(_presumed_end(attempt.rows[-1]))
    return min(now, max(ends))


def _presumed_end(last_row: TimeRow) -> float:
    """Return when an attempt ended of which only the last row is known."""
    if last_row.over:
        return last_row.t
    return last_row.t + LONGEST_GAP


def _waiting_after(before: Optional[RunLog]) -> TimeCause:
    """Return the cause of the time that a job is in the queue after this run."""
    if before is None or not before.attempts:
        return TimeCause.QUEUE
    if _launch_end_of(before.attempts[-1]) is LaunchEnd.LOST:
        return TimeCause.NODES
    return TimeCause.QUEUE


def _lay_pieces_of_run(piece_row: PieceRow, run: RunLog, end: float, step_facts: _StepFacts, is_running: bool) -> None:
    """Append the pieces of a run in which it held its nodes, up to `end`."""
    for number, attempt in enumerate(run.attempts):
        if number:
            piece_row.append_piece_until(attempt.t, TimeCause.BACK_OFF)
        else:
            piece_row.append_piece_until(attempt.t, TimeCause.START_UP, BATCH_SCRIPT)
        over = _end_of_attempt(run, number, end)
        is_last = number + 1 == len(run.attempts)
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


def _end_of_attempt(run: RunLog, number: int, end: float) -> float:
    """Return when an attempt ended; where that was not observed, when the next attempt began or the run ended."""
    attempt = run.attempts[number]
    if attempt.ended is not None:
        return attempt.ended
    if number + 1 == len(run.attempts):
        return end
    return run.attempts[number + 1].t


def _lay_pieces_of_attempt(
    piece_row: PieceRow,
    attempt: AttemptLog,
    end: float,
    redone_from_step: Optional[int],
    any_program_reports: bool,
    at_work: bool,
) -> None:
    ending = LaunchEnd.RUNS
    if not at_work:
        ending = _launch_end_of(attempt)
    launches = _launches(attempt.rows)
    if not launches:
        piece_row.append_piece_until(end, TimeCause.UNATTRIBUTED)
        return
    for number, rows in enumerate(launches):
        if number == 0:
            piece_row.append_piece_until(rows[0].began, TimeCause.START_UP, LAUNCH)
        elif attempt.retried:
            piece_row.append_piece_until(rows[0].began, TimeCause.NODES)
        else:
            piece_row.append_piece_until(rows[0].began, TimeCause.BACK_OFF)
        if number + 1 == len(launches):
            launch_ending, launch_end_time = _ending_or_peer_lost(ending, rows[-1], attempt), end
        else:
            launch_ending, launch_end_time = _end_of_earlier_launch(rows[-1], launches[number + 1][0])
        _lay_pieces_of_launch(piece_row, rows, redone_from_step, launch_ending, launch_end_time, any_program_reports)


def _end_of_earlier_launch(last_row: TimeRow, following: TimeRow) -> Tuple[LaunchEnd, float]:
    """Return how and when a launch ended that another one follows, by its last row and the first of the other."""
    if last_row.over:
        return LaunchEnd.CRASHED, last_row.t
    end = min(following.began, last_row.t + LONGEST_GAP)
    if following.node == last_row.node:
        return LaunchEnd.CRASHED, end
    return LaunchEnd.LOST, end


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
    """Return how an attempt's last launch ended; one of an unknown class counts as lost."""
    kind = OutcomeKind.parse(attempt.kind)
    if kind is None:
        return LaunchEnd.LOST
    return kind.launch_end


def _ending_or_peer_lost(ending: LaunchEnd, row: TimeRow, attempt: AttemptLog) -> LaunchEnd:
    """Return PEER_LOST for a lost launch whose end `job run` observed and whose rank 0 was on a node that was not lost.

    Rank 0 has then written all that it did.
    """
    if ending is not LaunchEnd.LOST:
        return ending
    is_end_observed = attempt.ended is not None and row.node not in attempt.lost
    if is_end_observed:
        return LaunchEnd.PEER_LOST
    return ending


def _is_starting(row: TimeRow, reports: bool, how: LaunchEnd) -> bool:
    """Return whether a program that has reported nothing was still starting, and is not one that never reports."""
    return reports or (how is LaunchEnd.RUNS and row.t - row.began < NOT_YET)


def _launches(rows: Sequence[TimeRow]) -> List[List[TimeRow]]:
    """Return the rows by process: processes in order of their start, and the rows of each in order of time."""
    rows_by_process: Dict[Tuple[str, float], List[TimeRow]] = {}
    for row in rows:
        rows_by_process.setdefault((row.launch, row.began), []).append(row)
    launches = [sorted(group, key=lambda row: row.t) for group in rows_by_process.values()]
    return sorted(launches, key=lambda group: group[0].began)


def _redone_from_step_by_attempt(runs: Sequence[RunLog]) -> Dict[str, int]:
    """Return, by attempt, the first step that a later attempt did again; steps of a finished job have lasted."""
    attempts = [attempt for run in runs for attempt in run.attempts]
    step_by_attempt: Dict[str, int] = {}
    least: Optional[int] = None
    for attempt in reversed(attempts):
        if attempt.kind == OutcomeKind.DONE.value:
            least = None
        if least is not None:
            step_by_attempt[attempt.name] = least
        first = attempt.first_step
        if first is not None and (least is None or first < least):
            least = first
    return step_by_attempt


def _unit(runs: Sequence[RunLog]) -> str:
    """Return "gpu" where every run says how many GPUs it held, otherwise "node"."""
    for run in runs:
        if run.row is None or not run.row.gpus:
            return "node"
    return "gpu"


def _weight(run: RunLog, unit: str) -> int:
    """Return the GPUs that a run held; its nodes where their GPUs are not known, or they have none."""
    if unit == "gpu" and run.row is not None and run.row.gpus:
        return run.row.gpus
    if run.row is not None and run.row.nodes:
        return len(run.row.nodes)
    most_nodes = max((len(attempt.nodes) for attempt in run.attempts), default=0)
    return max(1, most_nodes)


def _weighted(pieces: Sequence[TimePiece], allocated_at: float, weight: int) -> List[TimePiece]:
    """Return the pieces with the GPUs that the job held in them: none before it got its nodes."""
    weighted: List[TimePiece] = []
    for piece in pieces:
        if piece.start >= allocated_at:
            weighted.append(piece._replace(gpus=weight))
        else:
            weighted.append(piece._replace(gpus=0))
    return weighted


def _caveats_of_runs(runs: Sequence[RunLog]) -> Tuple[str, ...]:
    """Return a sentence for each thing that the rows of the runs do not contain."""
    caveats = []
    if any(run.row is None or not run.row.queued for run in runs):
        caveats.append("its time in the queue is unknown")
    if any(run.row is None or run.row.gpus is None for run in runs):
        caveats.append("its number of GPUs is unknown")
    return tuple(caveats)
