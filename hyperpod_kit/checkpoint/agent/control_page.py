"""The control page of a shared-memory slot: 4 KiB that say what the slot holds, torn by no crash.

The page has two halves. A write goes to the half that is *not* current and becomes current by its digest and its
higher generation: a process that dies in mid-write leaves the other half as it was.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Optional, Tuple

from hyperpod_kit.checkpoint.repository.digest import algorithm
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.process import Process
from hyperpod_kit.untrusted import parse

PAGE = 4096
_HALF = PAGE // 2
_MAGIC = b"HPKSLOT1"
_HEAD = struct.Struct("<8sQI")
_DIGEST = 8
_ROOM = _HALF - _HEAD.size - _DIGEST


class SlotState(str, enum.Enum):
    """How far a slot is. A text, because that is what the page has."""

    FREE = "FREE"
    WRITING = "WRITING"
    CAPTURED = "CAPTURED"
    SEALED = "SEALED"

    __str__ = str.__str__  # printed as its value by every Python; f-strings of 3.8 to 3.12 differ otherwise


WHOLE = frozenset((SlotState.CAPTURED, SlotState.SEALED))
"""The slot holds all bytes of a capture."""

# Who may do what: the trainer FREE -> WRITING -> CAPTURED, the agent the rest. WRITING -> FREE is for a trainer whose
# copy failed, and for the agent that finds a dead trainer's half copy. SEALED -> SEALED sets `durable`.
_LEGAL = {
    (SlotState.FREE, SlotState.WRITING),
    (SlotState.WRITING, SlotState.CAPTURED),
    (SlotState.WRITING, SlotState.FREE),
    (SlotState.CAPTURED, SlotState.SEALED),
    (SlotState.CAPTURED, SlotState.FREE),
    (SlotState.SEALED, SlotState.SEALED),
    (SlotState.SEALED, SlotState.FREE),
}

Key = Tuple[int, int, str]


@dataclass(frozen=True)
class Page:
    """What a slot holds. Sizes in bytes; `root` is the storage root it belongs to, `shard_root` its digest."""

    state: SlotState = SlotState.FREE
    rank: int = 0
    world: int = 1
    epoch: int = 0
    seq: int = 0
    step: int = 0
    incarnation: str = ""
    run: str = ""
    run_id: str = ""
    root: str = ""
    job: Dict[str, Any] = field(default_factory=dict)
    owner: Tuple[int, int] = (0, 0)
    digest: str = ""
    chunk: int = 0
    size: int = 0
    layout: str = ""
    plan: str = ""
    tensors: int = 0
    plan_tensors: int = 0
    extra_size: int = 0
    extra_root: str = ""
    shard_root: str = ""
    durable: bool = False

    @property
    def key(self) -> Key:
        """Which capture this is: the same on all ranks, (epoch, seq, incarnation)."""
        return (self.epoch, self.seq, self.incarnation)

    @property
    def trainer(self) -> Process:
        return Process(*self.owner)

    def to(self, state: SlotState, **changes: Any) -> Page:
        """The page after a transition. Raises CheckpointError when the state machine has no such edge."""
        if (self.state, state) not in _LEGAL:
            raise CheckpointError(f"a slot cannot go from {self.state} to {state}")
        return replace(self, state=state, **changes)


_EMPTY = Page()


def read(view: memoryview) -> Optional[Tuple[int, Page]]:
    """(generation, page) of the newest intact half; None when neither is intact."""
    best: Optional[Tuple[int, Page]] = None
    for at in (0, _HALF):
        found = _read_half(bytes(view[at : at + _HALF]))
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best


def _read_half(half: bytes) -> Optional[Tuple[int, Page]]:
    magic, generation, length = _HEAD.unpack_from(half)
    end = _HEAD.size + length
    if magic != _MAGIC or length > _ROOM:
        return None
    if algorithm("blake2b").leaf(half[:end]) != half[end : end + _DIGEST]:
        return None
    try:
        return generation, page_of(parse.json_object(half[_HEAD.size : end]))
    except (ValueError, TypeError, KeyError):
        return None


def page_of(body: Dict[str, Any]) -> Page:
    """A page that was written as JSON, every value of its type. Raises ValueError, TypeError, KeyError."""
    owner, state = body["owner"], body["state"]
    if state not in [str(one) for one in SlotState]:
        raise ValueError(f"state is {str(state)[:80]!r}")
    if not isinstance(owner, (list, tuple)) or len(owner) != 2 or not all(map(_is_count, owner)):
        raise ValueError(f"owner is {str(owner)[:80]}")
    page = Page(**{**body, "state": SlotState(state), "owner": (owner[0], owner[1])})
    for name, value in page.__dict__.items():
        kind = type(getattr(_EMPTY, name))
        good = _is_count(value) if kind is int else isinstance(value, kind)
        if kind is str and good:
            value.encode()  # half of a surrogate pair is no text
        if not good:
            raise ValueError(f"{name} is {str(value)[:80]!r}")
    return page


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def write(view: memoryview, generation: int, page: Page) -> None:
    """Make `page` current with `generation` (one more than the last). Raises CheckpointError when it does not fit."""
    text = json.dumps(asdict(page), separators=(",", ":")).encode()
    if len(text) > _ROOM:
        raise CheckpointError(f"the control page needs {len(text)} of {_ROOM} bytes: shorten the root's path")
    half = _HEAD.pack(_MAGIC, generation, len(text)) + text
    half += algorithm("blake2b").leaf(half)
    at = (generation % 2) * _HALF
    view[at : at + len(half)] = half
