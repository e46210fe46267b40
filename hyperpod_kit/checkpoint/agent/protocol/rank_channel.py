"""What the agents of a run and that of rank 0 say to each other, over TCP or within rank 0's own. See message."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Tuple, Type, Union, get_args

from hyperpod_kit.checkpoint.agent.protocol.message import THERE, UNLESS_FALSE, WHY, Message, parse_key
from hyperpod_kit.checkpoint.agent.reports.replicas import Replicas, Tensors
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage

# --- every rank's agent -> rank 0's -----------------------------------------------------------------------------------


class _RankMessage(Message):
    CHANNEL = "op"


class RankJoined(_RankMessage):
    """An agent of that rank has come in the place of another. Said by rank 0's own hub."""

    TAG = "joined"


@dataclass(eq=False, repr=False)
class RankCaptured(_RankMessage):
    """This rank has all bytes of that capture. `adopted`: of an earlier start or agent. `replicas`: what it holds
    together with others, where the save compares. `memory`: it need not go to storage."""

    TAG = "captured"
    key: Key
    adopted: bool = field(metadata=UNLESS_FALSE)
    replicas: Optional[Replicas]
    memory: bool = field(default=False, metadata=UNLESS_FALSE)


@dataclass(eq=False, repr=False)
class RankSealed(_RankMessage):
    """This rank has computed all digests of it."""

    TAG = "sealed"
    key: Key


@dataclass(eq=False, repr=False)
class RankSkipped(_RankMessage):
    """This rank will never have it."""

    TAG = "skipped"
    key: Key
    reason: str = field(metadata=WHY)


@dataclass(eq=False, repr=False)
class RankLocal(_RankMessage):
    """The end of a `persist` with a node-local tier: on the node's disk, or not `is_present` and to be uploaded from
    memory."""

    TAG = "local"
    key: Key
    is_present: bool = field(metadata=THERE)


@dataclass(eq=False, repr=False)
class RankPersisted(_RankMessage):
    """The end of a `persist` or an `upload`: this rank's shard is on storage. `report`: see report_texts."""

    TAG = "persisted"
    key: Key
    report: Dict[str, Any]


@dataclass(eq=False, repr=False)
class RankFailed(_RankMessage):
    """The other end of a `persist` or an `upload`: the shard could not be written. `full`: for want of room."""

    TAG = "failed"
    key: Key
    reason: str = field(metadata=WHY)
    full: bool = field(default=False, metadata=UNLESS_FALSE)


@dataclass(eq=False, repr=False)
class RankTensors(_RankMessage):
    """The answer to `which`."""

    TAG = "which"
    key: Key
    tensors: Tensors


@dataclass(eq=False, repr=False)
class RankText(_RankMessage):
    """The answer to `tell`: the text of that digest; None where it is not known any more."""

    TAG = "text"
    key: Key
    digest: str
    text: Optional[str]


class RankHurried(_RankMessage):
    """This rank's machine or job is about to go: what is in memory alone should not stay there."""

    TAG = "hurried"


class RankDone(_RankMessage):
    """This rank will capture nothing more: its trainer has closed, or is gone."""

    TAG = "done"


RankReport = Union[
    RankJoined,
    RankCaptured,
    RankSealed,
    RankSkipped,
    RankLocal,
    RankPersisted,
    RankFailed,
    RankTensors,
    RankText,
    RankHurried,
    RankDone,
]


# --- rank 0's agent -> every rank's -----------------------------------------------------------------------------------


class OrderKind(enum.Enum):
    """What is to be done, or what has become of a capture. `CHECK_COMMITTED`, `COMMIT` and `CLEAR` are for rank 0's
    agent itself. `TAKEN`: a newer start has the root."""

    CHECK_COMMITTED = "look"
    PERSIST = "persist"
    SEALED = "sealed"
    LOCAL = "local"
    UPLOAD = "upload"
    COMMIT = "commit"
    CLEAR = "clear"
    COMMITTED = "committed"
    DROPPED = "dropped"
    FAILED = "failed"
    OVERTAKEN = "overtaken"
    REFUSED = "refused"
    COMPARE = "which"
    SEND_TEXT = "tell"
    RESYNC = "again"
    TAKEN = "taken"
    SHUTDOWN = "bye"


class Order(NamedTuple):
    """`note`: the attempt of what is committed; the set of holders that `COMPARE` is about; the digest of the text
    that `SEND_TEXT` asks for; else why it is so.

    `COMPARE` and `SEND_TEXT` are for `ranks`, all others for every agent. `SHUTDOWN`, `RESYNC` and `TAKEN` are about no
    capture.
    """

    kind: OrderKind
    key: Optional[Key]
    note: str = ""
    ranks: Tuple[int, ...] = ()

    def to_json(self) -> JsonMessage:
        body: JsonMessage = {"op": self.kind.value, "key": list(self.key or ()), "note": self.note}
        if self.ranks:
            return {**body, "ranks": list(self.ranks)}
        return body


_RANK: Dict[str, Type[RankReport]] = {kind.TAG: kind for kind in get_args(RankReport)}


def parse_rank_report_if_known(body: JsonMessage) -> Optional[RankReport]:
    """What an agent says to that of rank 0; None for what this release does not know. Raises as `Message.from_json`."""
    kind = _RANK.get(body["op"])
    if kind is not None:
        return kind.from_json(body)
    return None


def parse_order_if_known(body: JsonMessage) -> Optional[Order]:
    """What rank 0's agent says; as above."""
    try:
        kind = OrderKind(body["op"])
    except ValueError:
        return None
    key = None
    if body["key"]:
        key = parse_key(body["key"])
    return Order(kind, key, str(body["note"]), tuple(int(rank) for rank in body.get("ranks", ())))
