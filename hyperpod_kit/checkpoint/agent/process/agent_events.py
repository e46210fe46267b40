"""What an agent's main thread takes from its queue, one after the other: all else only puts something there.

Messages of the other ends (see protocol), ends of connections, signals, and what the workers' jobs gave: the result
with `failure` "", or None and why not, with `error_number`, the errno of the storage's error, where it was one.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Union

from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, RankReport
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import TrainerMessage
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, Page
from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from hyperpod_kit.checkpoint.repository.retention import Applied


class FromTrainer(NamedTuple):
    message: TrainerMessage


class TrainerDisconnected(NamedTuple):
    """Its end of the socket is closed."""


class FromLeader(NamedTuple):
    """From rank 0's agent."""

    order: Order


class LeaderDisconnected(NamedTuple):
    """The connection to rank 0's agent has ended."""


class LeaderSearchEnded(NamedTuple):
    """The search for another agent of rank 0 is over; None: nobody came."""

    uplink: Optional[Channel]


class FromRank(NamedTuple):
    """To rank 0's agent, from that of `rank`."""

    rank: int
    report: RankReport


class RankDisconnected(NamedTuple):
    """The connection to the agent of `rank` has ended."""

    rank: int


class StopRequested(NamedTuple):
    """Leave everything as it is, and go: a new start takes over."""


class HurryRequested(NamedTuple):
    """The machine or the job is about to go."""


class SealResult(NamedTuple):
    key: Key
    page: Optional[Page]
    failure: str
    error_number: int = 0


class LocalResult(NamedTuple):
    """Of a write to the node's disk."""

    key: Key
    report: Optional[Report]
    failure: str
    error_number: int = 0


class WriteResult(NamedTuple):
    """Of a write to storage, from memory or from the node's disk."""

    key: Key
    report: Optional[Report]
    failure: str
    error_number: int = 0


class PruneResult(NamedTuple):
    """Of making room on the node's disk."""

    key: Key
    unused: None
    failure: str
    error_number: int = 0


class CommitCheckResult(NamedTuple):
    """The attempt on storage that has the capture; "": there is none."""

    key: Key
    checkpoint_id: Optional[str]
    failure: str
    error_number: int = 0


class CommitOutcome(NamedTuple):
    """The attempt whose manifest is written. `taken_by`: who had the root by then, "" where nobody but this start
    had."""

    checkpoint_id: str
    taken_by: str = ""


class CommitResult(NamedTuple):
    key: Key
    commit: Optional[CommitOutcome]
    failure: str
    error_number: int = 0


class RetentionResult(NamedTuple):
    """What was deleted, what could not be, and what was found to be damaged."""

    key: Key
    applied: Optional[Applied]
    failure: str
    error_number: int = 0


class ClearResult(NamedTuple):
    """What was given up for a save that had no room."""

    key: Key
    applied: Optional[Applied]
    failure: str
    error_number: int = 0


class OwnerCheckResult(NamedTuple):
    """Who has the root, after a save that failed; "" while it is this start."""

    key: Key
    taken_by: Optional[str]
    failure: str
    error_number: int = 0


class LossNoteResult(NamedTuple):
    """Of a word on the root about a save that came to nothing."""

    key: Key
    unused: None
    failure: str
    error_number: int = 0


class SweepResult(NamedTuple):
    """Of the search for what dead runs left in shared memory. found: of what was given up, a line for each."""

    key: Key
    losses: Optional[List[str]]
    failure: str
    error_number: int = 0


RankResult = Union[SealResult, LocalResult, WriteResult, PruneResult, SweepResult]
"""Of jobs that each agent has done for its own rank."""

LeaderResult = Union[CommitCheckResult, CommitResult, RetentionResult, ClearResult, OwnerCheckResult, LossNoteResult]
"""Of jobs that rank 0's agent has done for all."""

JobResult = Union[RankResult, LeaderResult]
LeaderEvent = Union[FromRank, RankDisconnected, LeaderResult]
"""Of rank 0's agent only."""

Event = Union[
    FromTrainer,
    TrainerDisconnected,
    FromLeader,
    LeaderDisconnected,
    LeaderSearchEnded,
    StopRequested,
    HurryRequested,
    RankResult,
    LeaderEvent,
]
