"""What a trainer and its agent say to each other, over a pair of sockets. See message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Optional, Sequence, Tuple, Type, Union, get_args

from hyperpod_kit.checkpoint.agent.protocol.message import WAS, WHY, CaptureOutcome, Message
from hyperpod_kit.checkpoint.agent.reports.replicas import Tensors
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage
from hyperpod_kit.untrusted.dataclass_json import json_field

# --- trainer -> its agent ---------------------------------------------------------------------------------------------


class _FromTrainerMessage(Message):
    CHANNEL = "op"


@dataclass(eq=False, repr=False)
class Connect(_FromTrainerMessage):
    """Where rank 0's agent listens. Once, by every trainer; rank 0's agent has no use for it. The agent connects, or
    says `Fatal`."""

    TAG = "connect"
    addresses: Sequence[Tuple[str, int]]


@dataclass(eq=False, repr=False)
class PartnerAt(_FromTrainerMessage):
    """Where the agent listens that holds copies of this rank's captures. Once, where the run has partners."""

    TAG = "partner"
    addresses: Sequence[Tuple[str, int]]


class TakeOver(_FromTrainerMessage):
    """To an agent that was started in the place of a dead one: go on with what this start has in the slots."""

    TAG = "again"


@dataclass(eq=False, repr=False)
class RestoreCompleted(_FromTrainerMessage):
    """The run has restored, from `keep` (None: from storage, or from nothing): that stays until a newer one is sealed,
    what else earlier starts left is freed. Once, after a restore or before the first save."""

    TAG = "settle"
    keep: Optional[Key]
    tier: str


@dataclass(eq=False, repr=False)
class SlotCaptured(_FromTrainerMessage):
    """The slot of that number is whole. The agent seals it, and tells rank 0's `RankCaptured`."""

    TAG = "captured"
    slot: int


@dataclass(eq=False, repr=False)
class SaveSkipped(_FromTrainerMessage):
    """This rank will never have that save. Passed on as `RankSkipped`."""

    TAG = "skipped"
    key: Key
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class TensorDigests(_FromTrainerMessage):
    """The answer to `TensorQuery`; `tensors` None where they are not known any more. Passed on as `RankTensors`."""

    TAG = "which"
    key: Key
    tensors: Tensors


@dataclass(eq=False, repr=False)
class FreeSlot(_FromTrainerMessage):
    """The save `key` finds no free slot: give up the oldest capture that may be. Answered by `SlotReleased`."""

    TAG = "release"
    key: Key


class Close(_FromTrainerMessage):
    """No save will come any more: bring to its end what is on its way, clean up, end. The answer is the agent's end."""

    TAG = "close"


TrainerMessage = Union[
    Connect, PartnerAt, TakeOver, RestoreCompleted, SlotCaptured, SaveSkipped, TensorDigests, FreeSlot, Close
]


# --- agent -> its trainer ---------------------------------------------------------------------------------------------


class _FromAgentMessage(Message):
    CHANNEL = "ev"


@dataclass(eq=False, repr=False)
class Ready(_FromAgentMessage):
    """The first word: what was there is adopted. `port`: where rank 0's agent listens, 0 for the others.
    `partner_port`: where this one takes other nodes' captures, 0 where the run has no partners."""

    TAG = "ready"
    port: int
    partner_port: int = field(default=0, metadata=json_field(left_out=0))


@dataclass(eq=False, repr=False)
class StartRefused(_FromAgentMessage):
    """The only word of an agent that cannot begin: an error of class `kind`."""

    TAG = "refused"
    kind: str
    reason: str = field(metadata=WHY)
    hint: Optional[str]


class Alive(_FromAgentMessage):
    """A sign of life, every few seconds."""

    TAG = "alive"


@dataclass(eq=False, repr=False)
class AgentTrouble(_FromAgentMessage):
    """Something that a person should know, and that ends nothing."""

    TAG = "trouble"
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class Stalled(_FromAgentMessage):
    """Work stands still; "": it goes on."""

    TAG = "stalled"
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class Fatal(_FromAgentMessage):
    """No save can reach storage any more; another agent would not help."""

    TAG = "fatal"
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class RootTaken(_FromAgentMessage):
    """A newer start has the root: nothing that this one saves will last. The agent stays."""

    TAG = "taken"
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class AgentEnded(_FromAgentMessage):
    """No agent will be there any more. Never on a socket: the trainer's end says so of itself."""

    TAG = "ended"
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class SlotReleased(_FromAgentMessage):
    """The answer to `FreeSlot`: the slot that is free now, None when none could be given up."""

    TAG = "released"
    slot: Optional[int]


@dataclass(eq=False, repr=False)
class TensorQuery(_FromAgentMessage):
    """In which tensors of that save, of those held by `holders`, may this rank differ? Answered by `TensorDigests`."""

    TAG = "which"
    key: Key
    holders: str


@dataclass(eq=False, repr=False)
class SaveSealed(_FromAgentMessage):
    """Every rank has sealed it: it can be restored from memory."""

    TAG = "sealed"
    key: Key


@dataclass(eq=False, repr=False)
class SaveLocal(_FromAgentMessage):
    """Every rank has it on its node's own disk."""

    TAG = "local"
    key: Key


@dataclass(eq=False, repr=False)
class SaveDurable(_FromAgentMessage):
    """It is committed; `note` is its attempt."""

    TAG = "durable"
    key: Key
    note: str
    outcome: CaptureOutcome = field(metadata=WAS)


@dataclass(eq=False, repr=False)
class SaveFailed(_FromAgentMessage):
    """It will not be durable; `note` says why. `outcome`: what became of it, more exactly."""

    TAG = "failed"
    key: Key
    note: str
    outcome: CaptureOutcome = field(metadata=WAS)


@dataclass(eq=False, repr=False)
class SaveDropped(_FromAgentMessage):
    """Some rank does not have it, or a newer one took its place; `note` says why."""

    TAG = "dropped"
    key: Key
    note: str
    outcome: CaptureOutcome = field(metadata=WAS)


SaveEvent = Union[SaveSealed, SaveLocal, SaveDurable, SaveFailed, SaveDropped]
AgentEvent = Union[
    Ready,
    StartRefused,
    Alive,
    AgentTrouble,
    Stalled,
    Fatal,
    RootTaken,
    AgentEnded,
    SlotReleased,
    TensorQuery,
    SaveEvent,
]

END_EVENTS: Dict[CaptureOutcome, Callable[[Key, str, CaptureOutcome], SaveEvent]] = {
    CaptureOutcome.DURABLE: SaveDurable,
    CaptureOutcome.FAILED: SaveFailed,
    CaptureOutcome.REFUSED: SaveFailed,
    CaptureOutcome.DROPPED: SaveDropped,
    CaptureOutcome.OVERTAKEN: SaveDropped,
}
"""What the trainer is told of a capture's end."""

_TRAINER: Dict[str, Type[TrainerMessage]] = {kind.TAG: kind for kind in get_args(TrainerMessage)}
_AGENT: Dict[str, Type[AgentEvent]] = {kind.TAG: kind for kind in get_args(AgentEvent)}


def parse_trainer_message_if_known(body: JsonMessage) -> Optional[TrainerMessage]:
    """What a trainer says; None for what this release does not know. Raises as `Message.from_json`."""
    kind = _TRAINER.get(body["op"])
    if kind is not None:
        return kind.from_json(body)
    return None


def parse_agent_event_if_known(body: JsonMessage) -> Optional[AgentEvent]:
    """What an agent says to its trainer; as above."""
    kind = _AGENT.get(body["ev"])
    if kind is not None:
        return kind.from_json(body)
    return None
