"""How a message between a trainer and its agent, or between agents, is written on a socket and read from it.

    trainer -> its agent       `trainer_channel.TrainerMessage`, tagged "op"
    agent -> its trainer       `trainer_channel.AgentEvent`, tagged "ev"
    agent -> agent of rank 0   `rank_channel.RankReport`, tagged "op"
    agent of rank 0 -> agents  `rank_channel.Order`, tagged "op"

Each is one JSON object on a line (see lines): its tag, then its fields under their own names. What another release says
and this one does not know is passed over. Whoever takes the messages of a channel goes through all of its types and
ends with `assert_never`: mypy finds the type that is missing. docs/design/agent-protocol.md has the states, and what a
lost message means.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Type, TypeVar

from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json, json_field

_Message = TypeVar("_Message", bound="Message")


def assert_never(value: NoReturn) -> NoReturn:
    """The end of a chain of cases that mypy finds complete."""
    raise AssertionError(f"{value!r} is of no type of its channel")


class CaptureOutcome(enum.Enum):
    """What became of a capture. All but LOCAL, which is a stage on the way, are ends."""

    LOCAL = "local"
    DURABLE = "durable"
    FAILED = "failed"
    DROPPED = "dropped"
    OVERTAKEN = "overtaken"
    REFUSED = "refused"

    @property
    def is_end(self) -> bool:
        return self is not CaptureOutcome.LOCAL

    @property
    def is_dropped_or_refused(self) -> bool:
        """Nothing of it is worth its place in memory."""
        return self in (CaptureOutcome.DROPPED, CaptureOutcome.REFUSED)


@dataclass(eq=False, repr=False)
class Message:
    """A message: what it is called on the socket, and its fields in the order in which they are written.

    It is compared and printed here for all kinds, and a kind without fields needs no decorator: each start of a trainer
    and of an agent would wait for what `dataclass` makes for each of thirty. Nobody changes a message.
    """

    CHANNEL: ClassVar[str]
    TAG: ClassVar[str]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__qualname__}({values})"

    def to_json(self) -> JsonMessage:
        return {self.CHANNEL: self.TAG, **dataclass_to_json(self)}

    @classmethod
    def from_json(cls: Type[_Message], body: JsonMessage) -> _Message:
        """Raises ValueError for what is no such message."""
        return dataclass_from_json(cls, body, ignore_unknown=True)


def parse_key(value: Any) -> Key:
    return (int(value[0]), int(value[1]), str(value[2]))


THERE = json_field("there")
WAS = json_field("was")
WHY = json_field("why")
"""Metadata of fields whose key on the socket is another word."""

UNLESS_FALSE = json_field(left_out=False)
"""Metadata of a field that is written only where it is true."""
