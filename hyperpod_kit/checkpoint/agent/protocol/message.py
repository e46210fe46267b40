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
from dataclasses import dataclass, fields
from typing import Any, Callable, ClassVar, Dict, NoReturn, Type, TypeVar

from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage

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


@dataclass(frozen=True)
class Message:
    """A message: what it is called on the socket, and its fields in the order in which they are written."""

    CHANNEL: ClassVar[str]
    TAG: ClassVar[str]

    def to_json(self) -> JsonMessage:
        body: JsonMessage = {self.CHANNEL: self.TAG}
        for field in fields(self):
            value = getattr(self, field.name)
            if value or field.name not in _OMITTED:
                body[_KEYS.get(field.name, field.name)] = value.value if isinstance(value, enum.Enum) else value
        return body

    @classmethod
    def from_json(cls: Type[_Message], body: JsonMessage) -> _Message:
        """Raises KeyError, ValueError, TypeError, IndexError for what is no such message."""
        omitted = _OMITTED
        return cls(
            **{
                field.name: omitted[field.name]
                if field.name in omitted and field.name not in body
                else _PARSERS[field.name](body[_KEYS.get(field.name, field.name)])
                for field in fields(cls)
            }
        )


def parse_key(value: Any) -> Key:
    return (int(value[0]), int(value[1]), str(value[2]))


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_PARSERS: Dict[str, Callable[[Any], Any]] = {
    "addresses": lambda value: tuple((str(host), int(port)) for host, port in value),
    "adopted": bool,
    "digest": str,
    "full": bool,
    "hint": _optional(str),
    "holders": str,
    "is_present": bool,
    "keep": _optional(parse_key),
    "key": parse_key,
    "kind": str,
    "memory": bool,
    "note": str,
    "outcome": CaptureOutcome,
    "partner_port": int,
    "port": int,
    "reason": str,
    "replicas": _optional(dict),
    "report": dict,
    "slot": _optional(int),
    "tensors": _optional(lambda value: [(str(name), str(layout), str(digest)) for name, layout, digest in value]),
    "text": _optional(str),
    "tier": str,
}
"""Field -> how it is read. A field means the same in every message that has it."""

_KEYS = {"is_present": "there", "outcome": "was", "reason": "why"}
"""Field -> its key on the socket, where that is another word."""

_OMITTED: Dict[str, Any] = {"adopted": False, "full": False, "memory": False, "partner_port": 0}
"""Fields that are not written when they are this."""
