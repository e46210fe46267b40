"""Histories of jobs, drawn at random, as the raw logs that a job writes, beside what they truly spent their time on.

Nothing here knows how the time ledger is made of the logs: a truth is what was simulated.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from hyperpod_kit.job.goodput import time_rows
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState
from hyperpod_kit.job.goodput.time_log import CHECK_INTERVAL, RankTime, RowSchedule
from hyperpod_kit.job.goodput.time_rows import RunRow
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.phase_clock import ClockReading, PhaseClock, decode_reading
from hyperpod_kit.slurm.progress import RankState

GPUS = 16
CRASH, HANG, HOST, PEER, PREEMPTED, REQUEUED = "crash", "hang", "host", "peer", "preempted", "requeued"
INCIDENTS = (CRASH, CRASH, HANG, HOST, PEER, PREEMPTED, REQUEUED)


class NowReached(Exception):
    """The moment at which the job is looked at."""


class TrueTime(NamedTuple):
    start: float
    end: float
    cause: TimeCause
    step: Optional[int] = None


class Memory:
    """What a rank's wrapper reads of its rank."""

    def __init__(self) -> None:
        self.written: Optional[PhaseClock] = None

    def read_phase_clock(self) -> Optional[ClockReading]:
        return decode_reading(self.written.encode()) if self.written is not None else None

    def state(self) -> RankState:
        return RankState(None, None, Phase.START, 0)


def append(path: str, line: bytes) -> None:
    """As the product does, but for the disk."""
    Path(path).parent.mkdir(exist_ok=True)
    with open(path, "ab") as file:
        file.write(line)


@dataclass
class Shape:
    """Of a job: seconds, but for `steps`, `memory_every`, `storage_every` and `evaluation_every`."""

    steps: int
    step: float
    first_step: float
    imports: float
    rendezvous: float
    restore: float
    stall: float
    data: float
    close: float
    evaluation: float
    memory_every: int
    storage_every: int
    evaluation_every: int

    @classmethod
    def draw(cls, random: random.Random) -> Shape:
        memory_every = random.randint(3, 20)
        return cls(
            steps=random.randint(300, 1200),
            step=random.uniform(8.0, 40.0),
            first_step=random.choice((0.0, random.uniform(10.0, 600.0))),
            imports=random.uniform(5.0, 300.0),
            rendezvous=random.uniform(1.0, 60.0),
            restore=random.uniform(1.0, 120.0),
            stall=random.uniform(0.05, 3.0),
            data=random.choice((0.0, random.uniform(0.1, 2.0))),
            close=random.uniform(1.0, 60.0),
            evaluation=random.uniform(10.0, 200.0),
            memory_every=memory_every,
            storage_every=memory_every * random.randint(1, 5),
            evaluation_every=random.choice((0, random.randint(40, 200))),
        )


@dataclass
class History:
    """One job, as it went. `state`: where its logs are written; `until`: when it is looked at, inf: after its end."""

    state: Path
    seed: int
    until: float = math.inf
    truth: List[TrueTime] = field(default_factory=list)
    lost_hosts: int = 0
    submitted: float = 1.8e9
    job: str = "7"
    skew: float = 0.0
    """Seconds by which the clock of the batch host, which is rank 0's, is ahead of Slurm's."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.standing = JobStanding(JobState.RUNS)
        self.shape = Shape.draw(self.random)
        self.t = self.submitted
        self.incidents = {
            self.random.randint(1, self.shape.steps - 1): self.random.choice(INCIDENTS)
            for _ in range(self.random.randint(0, 6))
        }
        self.memory = self.storage = -1
        self.restart = self.number = 0
        self.waited = 0.0
        self.rank: Optional[Rank] = None

    # --- the truth ----------------------------------------------------------------------------------------------

    def spend(self, seconds: float, cause: TimeCause, step: Optional[int] = None) -> None:
        """Time passes. Raises NowReached."""
        end = self.t + seconds
        over = min(end, self.until)
        self.truth.append(TrueTime(self.t, over, cause, step))
        if self.rank is not None:
            self.rank.looks(over)
        self.t = over
        if end >= self.until:
            raise NowReached

    def resumed(self, first: int) -> None:
        """From here on the steps are done again."""
        self.truth = [
            one._replace(cause=TimeCause.TWICE)
            if one.step is not None and one.step >= first and one.cause is TimeCause.LASTED
            else one
            for one in self.truth
        ]

    def seconds(self, since: float = 0.0, until: float = math.inf) -> Dict[TimeCause, float]:
        """The true table of a window."""
        found = {cause: 0.0 for cause in TimeCause}
        for one in self.truth:
            found[one.cause] += max(0.0, min(one.end, until) - max(one.start, since))
        return found

    # --- the job ------------------------------------------------------------------------------------------------

    def play(self) -> History:
        """From the submission to the end, or to `until`."""
        try:
            self.spend(self.random.choice((0.0, self.random.uniform(1.0, 7200.0))), TimeCause.QUEUE)
            queued = self.submitted
            while not self._run(queued):
                queued = self.queued
                self.restart, self.number = self.restart + 1, 0
            self.standing = JobStanding(JobState.OVER, float(int(self.t)))
        except NowReached:
            pass
        return self

    def _ledger(self) -> Ledger:
        return Ledger(str(self.state), self.job, self.restart, clock=lambda: self.t + self.skew)

    def _run(self, queued: float) -> bool:
        """One run of the batch script; whether the job has finished."""
        started = self.t
        self.spend(self.random.uniform(1.0, 90.0), TimeCause.START_UP)
        nodes = ("n1", "n2")
        moments = (self.t + self.skew, float(int(queued)), float(int(started)))
        row = RunRow(self.job, self.restart, *moments, GPUS, nodes, "ana", "gpu", "c")
        name = time_rows.run_name(self.job, "", self.restart)
        append(time_rows.path(str(self.state), name), time_rows.encoded_run(row))
        if self.unclosed is not None:
            self._ledger().append(
                "ended", attempt=self.unclosed, code=None, lost=["n1"], first=None, **{"class": "node_lost"}
            )
            self.unclosed = None
        while True:
            end = self._attempt()
            if end == "done":
                return True
            if end == "queue":
                return False

    unclosed: Optional[str] = None
    queued: float = 0.0

    def _attempt(self) -> str:
        name = self._ledger().name(self.number)
        self.number += 1
        source = max(self.memory, self.storage)
        self._ledger().append("attempt", attempt=name, nodes=["n1", "n2"], step=max(0, source), **{"from": "x"})
        self.began = self.t
        self.spend(self.random.uniform(0.5, 20.0), TimeCause.START_UP)
        self.rank = rank = Rank(self, name)
        self.spend(self.shape.imports, TimeCause.START_UP)
        rank.made()
        self.spend(self.shape.rendezvous, TimeCause.START_UP)
        rank.enter(Phase.RESTORE)
        self.spend(self.shape.restore, TimeCause.RESTORE)
        self.resumed(source + 1)
        rank.begins(source + 1)
        for step in range(source + 1, self.shape.steps):
            incident = self.incidents.pop(step, None)
            seconds = self.shape.step * self.random.uniform(0.95, 1.05)
            if step == source + 1:
                self.spend(self.shape.first_step, TimeCause.START_UP)
            if incident is not None:
                return self._incident(incident, rank, name, step, seconds)
            self._step(rank, step, seconds)
        rank.enter(Phase.CLOSE)
        self.spend(self.shape.close, TimeCause.CLOSE)
        rank.enter(Phase.OVER)
        self._ended(rank, name, "done", TimeCause.CLOSE)
        return "done"

    def _step(self, rank: Rank, step: int, seconds: float) -> None:
        self.waited += self.shape.data
        self.spend(self.shape.data, TimeCause.DATA)
        self.spend(seconds, TimeCause.LASTED, step)
        rank.reached(step)
        if step % self.shape.memory_every == self.shape.memory_every - 1:
            self._save(rank, step)
        if self.shape.evaluation_every and step % self.shape.evaluation_every == self.shape.evaluation_every - 1:
            rank.enter(Phase.EVALUATION)
            self.spend(self.shape.evaluation, TimeCause.LASTED, step)
            rank.enter(Phase.STEP)

    def _save(self, rank: Rank, step: int) -> None:
        rank.enter(Phase.SAVE)
        self.spend(self.shape.stall, TimeCause.SAVES)
        rank.enter(Phase.STEP)
        self.memory = step
        if step % self.shape.storage_every == self.shape.storage_every - 1:
            self.storage = step

    def _incident(self, incident: str, rank: Rank, name: str, step: int, seconds: float) -> str:
        happen: Dict[str, Callable[[Rank, str, int, float], str]] = {
            CRASH: self._crash,
            HANG: self._hang,
            HOST: self._host,
            PEER: self._peer,
            PREEMPTED: self._preempted,
            REQUEUED: self._requeued,
        }
        return happen[incident](rank, name, step, seconds)

    def _crash(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self.spend(seconds * self.random.random(), TimeCause.TWICE)
        self._ended(rank, name, "crash", TimeCause.BACK_OFF)
        self.spend(self.random.uniform(0.5, 60.0), TimeCause.BACK_OFF)
        return "again"

    def _hang(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self.spend(self.random.uniform(300.0, 1800.0), TimeCause.HANG)
        self._ended(rank, name, "stall", TimeCause.HANG)
        self.spend(self.random.uniform(0.5, 60.0), TimeCause.BACK_OFF)
        return "again"

    def _host(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        """The batch host, which is rank 0's: no word of this attempt comes any more."""
        self.spend(seconds * self.random.random(), TimeCause.TWICE)
        self.rank = None
        self.lost_hosts += 1
        self.spend(self.random.uniform(60.0, 400.0), TimeCause.HANG)
        self.memory, self.unclosed = self.storage, name
        return self._wait(TimeCause.NODES)

    def _peer(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self.spend(seconds * self.random.random(), TimeCause.TWICE)
        self.spend(self.random.uniform(6.0, 60.0), TimeCause.HANG)
        self._ended(rank, name, "node_lost", TimeCause.HANG, lost=["n2"])
        self._ledger().append("requeue", why="1 of 2 nodes are left")
        self.spend(self.random.uniform(0.5, 5.0), TimeCause.CLOSE)
        self.memory = self.storage
        return self._wait(TimeCause.NODES)

    def _preempted(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self._step(rank, step, seconds)
        rank.enter(Phase.SAVE)
        self.spend(self.shape.stall, TimeCause.SAVES)
        self.memory = self.storage = step
        rank.enter(Phase.CLOSE)
        self.spend(self.shape.close, TimeCause.CLOSE)
        self._ended(rank, name, "preempted", TimeCause.CLOSE)
        self._ledger().append("requeue", why="preempted")
        self.spend(self.random.uniform(0.5, 5.0), TimeCause.CLOSE)
        return self._wait(TimeCause.QUEUE)

    def _requeued(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self.spend(seconds * self.random.random(), TimeCause.TWICE)
        self._ended(rank, name, "requeued", TimeCause.CLOSE)
        self._ledger().append("stopped", why="was put back into the queue")
        self.memory = self.storage
        return self._wait(TimeCause.QUEUE)

    def _ended(
        self, rank: Rank, name: str, kind: str, after: TimeCause, lost: Tuple[str, ...] | List[str] = ()
    ) -> None:
        """The rank's process ends, and then `job run` notices."""
        rank.over()
        self.rank = None
        self.spend(self.random.uniform(0.3, 4.0), after)
        fields: Dict[str, Any] = {"lost": list(lost), "first": None, "class": kind, "code": 1}
        self._ledger().append("ended", attempt=name, seconds=round(self.t - self.began, 1), **fields)

    def _wait(self, cause: TimeCause) -> str:
        self.queued = self.t
        self.standing = JobStanding(JobState.WAITS, float(int(self.t)))
        self.spend(self.random.uniform(1.0, 3600.0), cause)
        self.standing = JobStanding(JobState.RUNS)
        return "queue"


class Rank:
    """Rank 0's process and its wrapper, which looks every half second."""

    def __init__(self, history: History, attempt: str) -> None:
        self._history = history
        self._path = time_rows.path(str(history.state), attempt)
        self._memory, self._schedule = Memory(), RowSchedule()
        self._began = history.t
        self._changed = True
        self._at = history.t
        launch = f"{history.restart}.{history.number}"
        skew = history.skew
        self._measured = RankTime(launch, "n1", history.t + skew, clock=lambda: self._at, now=lambda: self._at + skew)

    def looks(self, until: float) -> None:
        """Those that make a row, up to this moment."""
        while True:
            at = (
                self._began + math.ceil((self._history_or_due() - self._began) / CHECK_INTERVAL + 1e-3) * CHECK_INTERVAL
            )
            if at > until or at <= self._at:
                return
            self._at, self._changed = at, False
            self._write(over=False)

    def _history_or_due(self) -> float:
        return self._history.t if self._changed else self._began + self._schedule.due

    def _write(self, over: bool) -> None:
        row = self._measured.row(self._memory, over)
        age = self._at - self._began
        if self._schedule.is_due(age, row):
            append(self._path, time_rows.encoded(row))
            self._schedule.schedule_after_written_row(age, row)

    def made(self) -> None:
        """The Manager is made."""
        self._memory.written = PhaseClock(lambda: self._history.t, lambda: self._history.waited)
        self._changed = True

    def enter(self, phase: Phase) -> None:
        assert self._memory.written is not None
        self._memory.written.enter(phase)
        self._changed = True

    def begins(self, step: int) -> None:
        assert self._memory.written is not None
        self._memory.written.set_first_step(step)
        self.enter(Phase.STEP)

    def reached(self, step: int) -> None:
        assert self._memory.written is not None
        self._memory.written.count_completed_step(step)

    def over(self) -> None:
        self._at = self._history.t
        self._write(over=True)
