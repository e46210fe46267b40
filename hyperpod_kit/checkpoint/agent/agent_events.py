"""What an agent's main thread takes from its queue, one after the other: all else only puts something there.

Messages of the other ends (see protocol), ends of connections, signals, and what the workers' jobs gave: `found` with
`why` "", or None and why not, with the errno of the storage's error where it was one.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Union

from hyperpod_kit.checkpoint.agent.channel import Channel
from hyperpod_kit.checkpoint.agent.control_page import Key, Page
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import Order, RankReport
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import TrainerMessage
from hyperpod_kit.checkpoint.agent.shard_report import Report
from hyperpod_kit.checkpoint.repository.retention import Applied


class FromTrainer(NamedTuple):
    message: TrainerMessage


class TrainerGone(NamedTuple):
    """Its end of the socket is closed."""


class FromLeader(NamedTuple):
    """From rank 0's agent."""

    order: Order


class LeaderGone(NamedTuple):
    """The connection to rank 0's agent has ended."""


class LeaderSought(NamedTuple):
    """The search for another agent of rank 0 is over; None: nobody came."""

    uplink: Optional[Channel]


class FromRank(NamedTuple):
    """To rank 0's agent, from that of `rank`."""

    rank: int
    report: RankReport


class RankGone(NamedTuple):
    """The connection to the agent of `rank` has ended."""

    rank: int


class StopAsked(NamedTuple):
    """Leave everything as it is, and go: a new start takes over."""


class HurryAsked(NamedTuple):
    """The machine or the job is about to go."""


class SealResult(NamedTuple):
    key: Key
    found: Optional[Page]
    why: str
    number: int = 0


class LocalResult(NamedTuple):
    """Of a write to the node's disk."""

    key: Key
    found: Optional[Report]
    why: str
    number: int = 0


class WriteResult(NamedTuple):
    """Of a write to storage, from memory or from the node's disk."""

    key: Key
    found: Optional[Report]
    why: str
    number: int = 0


class PruneResult(NamedTuple):
    """Of making room on the node's disk."""

    key: Key
    found: None
    why: str
    number: int = 0


class LookResult(NamedTuple):
    """The attempt on storage that has the capture; "": there is none."""

    key: Key
    found: Optional[str]
    why: str
    number: int = 0


class CommitOutcome(NamedTuple):
    """The attempt whose manifest is written. `taken`: who had the root by then, "" where nobody but this start had."""

    attempt: str
    taken: str = ""


class CommitResult(NamedTuple):
    key: Key
    found: Optional[CommitOutcome]
    why: str
    number: int = 0


class RetentionResult(NamedTuple):
    """What was deleted, what could not be, and what was found to be damaged."""

    key: Key
    found: Optional[Applied]
    why: str
    number: int = 0


class ClearResult(NamedTuple):
    """What was given up for a save that had no room."""

    key: Key
    found: Optional[Applied]
    why: str
    number: int = 0


class TakenResult(NamedTuple):
    """Who has the root, after a save that failed; "" while it is this start."""

    key: Key
    found: Optional[str]
    why: str
    number: int = 0


class LossNoteResult(NamedTuple):
    """Of a word on the root about a save that came to nothing."""

    key: Key
    found: None
    why: str
    number: int = 0


class SweepResult(NamedTuple):
    """Of the search for what dead runs left in shared memory. found: of what was given up, a line for each."""

    key: Key
    found: Optional[List[str]]
    why: str
    number: int = 0


OwnResult = Union[SealResult, LocalResult, WriteResult, PruneResult, SweepResult]
"""Of jobs that each agent has done for its own rank."""

LeaderResult = Union[LookResult, CommitResult, RetentionResult, ClearResult, TakenResult, LossNoteResult]
"""Of jobs that rank 0's agent has done for all."""

JobResult = Union[OwnResult, LeaderResult]
LeaderEvent = Union[FromRank, RankGone, LeaderResult]
"""Of rank 0's agent only."""

Event = Union[
    FromTrainer, TrainerGone, FromLeader, LeaderGone, LeaderSought, StopAsked, HurryAsked, OwnResult, LeaderEvent
]
