"""Histories with what histories.py does not draw: hosts whose clocks differ, saves cut short, starts cut short, a job
that is cancelled and another one that goes on on its root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Optional

from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobStanding, JobState
from hyperpod_kit.slurm.phase import Phase
from tests.unit.job.goodput.histories import CRASH, HANG, HOST, PEER, PREEMPTED, REQUEUED, History, Rank

SAVE_KILLED, START_KILLED, START_LOST, CANCELLED = "save-killed", "start-killed", "start-lost", "cancelled"
HARD = (SAVE_KILLED, SAVE_KILLED, START_KILLED, START_LOST, START_LOST, CANCELLED)
ALL = (*HARD, CRASH, HANG, HOST, PEER, PREEMPTED, REQUEUED)
MOST_SKEW = 5.0


@dataclass
class HarderHistory(History):
    """`source`: the step behind which it goes on, where another job was on the root before."""

    source: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = self.storage = self.source
        first = self.source + 1
        self.incidents = {
            self.random.randint(first, self.shape.steps - 1): self.random.choice(ALL)
            for _ in range(self.random.randint(1, 7))
        }
        self._starts = [self.random.choice((START_KILLED, START_LOST, "")) for _ in range(2)]
        self.is_cancelled = False
        self._clock_of_a_host()

    def _clock_of_a_host(self) -> None:
        self.skew = self.random.uniform(-MOST_SKEW, MOST_SKEW)

    def _wait(self, cause: TimeCause) -> str:
        end = super()._wait(cause)
        self._clock_of_a_host()
        return end

    def _attempt(self) -> str:
        incident = self._starts.pop() if self._starts else ""
        if not incident:
            return super()._attempt()
        name = self._ledger().name(self.number)
        self.number += 1
        source = max(self.memory, self.storage)
        self._ledger().append("attempt", attempt=name, nodes=["n1", "n2"], step=max(0, source), **{"from": "x"})
        self.began = self.t
        self.spend(self.random.uniform(0.5, 20.0), TimeCause.START_UP)
        self.rank = rank = Rank(self, name)
        self.spend(self.shape.imports, TimeCause.START_UP)
        rank.made()
        if incident == START_LOST:
            self.rank = None
            self.lost_hosts += 1
            self.spend(self.random.uniform(60.0, 400.0), TimeCause.HANG)
            self.memory, self.unclosed = self.storage, name
            return self._wait(TimeCause.NODES)
        self.spend(self.shape.rendezvous * self.random.random(), TimeCause.START_UP)
        self._ended(rank, name, "crash", TimeCause.BACK_OFF)
        self.spend(self.random.uniform(0.5, 60.0), TimeCause.BACK_OFF)
        return "again"

    def _incident(self, incident: str, rank: Rank, name: str, step: int, seconds: float) -> str:
        happen: Dict[str, Callable[[Rank, str, int, float], str]] = {
            SAVE_KILLED: self._save_killed,
            START_KILLED: self._crash,
            START_LOST: self._host,
            CANCELLED: self._cancelled,
        }
        if incident in happen:
            return happen[incident](rank, name, step, seconds)
        return super()._incident(incident, rank, name, step, seconds)

    def _save_killed(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self._step(rank, step, seconds)
        rank.enter(Phase.SAVE)
        self.spend(self.shape.stall * self.random.random(), TimeCause.SAVES)
        self._ended(rank, name, "crash", TimeCause.BACK_OFF)
        self.spend(self.random.uniform(0.5, 60.0), TimeCause.BACK_OFF)
        return "again"

    def _cancelled(self, rank: Rank, name: str, step: int, seconds: float) -> str:
        self.spend(seconds * self.random.random(), TimeCause.TWICE)
        self._ended(rank, name, "cancelled", TimeCause.CLOSE)
        self._ledger().append("stopped", why="was cancelled")
        self.is_cancelled = True
        self.standing = JobStanding(JobState.OVER, float(int(self.t)))
        return "done"


def goes_on(before: HarderHistory, seed: int) -> Optional[HarderHistory]:
    """The job after one that was cancelled, on its root, as another number; None where that one has finished."""
    if not before.is_cancelled:
        return None
    job = HarderHistory(before.state, seed, submitted=before.t + 60.0, job="8_3", source=before.storage)
    return job
