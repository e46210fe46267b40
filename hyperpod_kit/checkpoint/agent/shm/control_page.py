"""The control page of a shared-memory slot: 4 KiB that say what the slot holds, torn by no crash.

The page has two halves. A write goes to the half that is *not* current and becomes current by its digest and its
higher generation: a process that dies in mid-write leaves the other half as it was.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.format.digest import algorithm
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.system.process import Process
from hyperpod_kit.untrusted import parse

PAGE = 4096
_HALF = PAGE // 2
_MAGIC = b"HPKSLOT1"
_HEAD = struct.Struct("<8sQI")
_DIGEST = 8
_CAPACITY = _HALF - _HEAD.size - _DIGEST


class SlotState(str, enum.Enum):
    """How far a slot is. A text, because that is what the page has."""

    FREE = "FREE"
    WRITING = "WRITING"
    CAPTURED = "CAPTURED"
    SEALED = "SEALED"

    __str__ = str.__str__  # printed as its value by every Python; f-strings of 3.8 to 3.12 differ otherwise


COMPLETE_STATES = frozenset((SlotState.CAPTURED, SlotState.SEALED))
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

TIER, IN_MEMORY = "tier", "memory"
"""What a capture's `job` says of one that is for memory. There, since a page has room for other words only there: an
older version passes it on, and brings the capture to storage, where it does no harm."""

SEALED_AT = "sealed_at"
"""The word in a capture's `job` for the moment at which it was sealed, see capture_age. Of memory alone: no manifest
has it."""

_LONGEST_MOMENT, _LONGEST_ROOT = 64, 48
_AT_SEALING = len(f',"{SEALED_AT}":""') + _LONGEST_MOMENT + _LONGEST_ROOT
"""Bytes that the page of a capture grows by until it is sealed."""


@dataclass(frozen=True)
class CaptureOrigin:
    """Who captured: one rank of a start of the run. `root` is the storage root it belongs to, `owner` its trainer."""

    rank: int = 0
    world: int = 1
    incarnation: str = ""
    run: str = ""
    run_id: str = ""
    root: str = ""
    job: Dict[str, Any] = field(default_factory=dict)
    owner: Tuple[int, int] = (0, 0)

    @property
    def trainer(self) -> Process:
        return Process(*self.owner)

    @property
    def as_memory_only(self) -> CaptureOrigin:
        """Return a copy that marks the capture as one that need not go to storage."""
        return replace(self, job={**self.job, TIER: IN_MEMORY})


class ShardFacts(NamedTuple):
    """The shard in the slot's image, and the non-tensor state behind the page. Sizes in bytes; `root` is the shard's
    digest, "" until it is sealed. `tensors` counts those that begin in this shard, `plan_tensors` those of all."""

    digest: str = ""
    chunk: int = 0
    size: int = 0
    layout: str = ""
    plan: str = ""
    tensors: int = 0
    plan_tensors: int = 0
    extra_size: int = 0
    extra_root: str = ""
    root: str = ""


class Page(NamedTuple):
    """What a slot holds."""

    state: SlotState = SlotState.FREE
    origin: CaptureOrigin = CaptureOrigin()
    epoch: int = 0
    seq: int = 0
    step: int = 0
    shard: ShardFacts = ShardFacts()
    durable: bool = False

    @property
    def key(self) -> Key:
        """Which capture this is: the same on all ranks, (epoch, seq, incarnation)."""
        return (self.epoch, self.seq, self.origin.incarnation)

    @property
    def is_memory_only(self) -> bool:
        """Whether it need not go to storage: only the newest does, once training ends."""
        return self.origin.job.get(TIER) == IN_MEMORY

    def checkpoint_id(self, nonce: str) -> str:
        """The name of an attempt to put this capture on storage: the same on all ranks that use one nonce."""
        return str(layout.CheckpointId(self.seq, self.step, self.epoch, nonce))

    def transition(self, state: SlotState, *, durable: bool = False, **shard: Any) -> Page:
        """The page after a transition; `shard`: what is known of the shard besides, `durable`: from now on it is.

        Raises CheckpointError when the state machine has no such edge.
        """
        if (self.state, state) not in _LEGAL:
            raise CheckpointError(f"a slot cannot go from {self.state} to {state}")
        if shard:
            shard_facts = self.shard._replace(**shard)
        else:
            shard_facts = self.shard
        return self._replace(state=state, durable=durable or self.durable, shard=shard_facts)

    def to_json(self) -> Dict[str, Any]:
        """As it stands on the page, in a rank's report and in a handed-in one: flat, and in this order."""
        origin, shard = self.origin, self.shard
        return {
            "state": self.state.value,
            "rank": origin.rank,
            "world": origin.world,
            "epoch": self.epoch,
            "seq": self.seq,
            "step": self.step,
            "incarnation": origin.incarnation,
            "run": origin.run,
            "run_id": origin.run_id,
            "root": origin.root,
            "job": origin.job,
            "owner": origin.owner,
            "digest": shard.digest,
            "chunk": shard.chunk,
            "size": shard.size,
            "layout": shard.layout,
            "plan": shard.plan,
            "tensors": shard.tensors,
            "plan_tensors": shard.plan_tensors,
            "extra_size": shard.extra_size,
            "extra_root": shard.extra_root,
            "shard_root": shard.root,
            "durable": self.durable,
        }


_EMPTY = Page().to_json()
_KINDS = [(name, type(value)) for name, value in _EMPTY.items()]
_STATES = {state.value: state for state in SlotState}
_ORIGIN = [origin_field.name for origin_field in fields(CaptureOrigin)]
_SHARD = ["shard_root" if name == "root" else name for name in ShardFacts._fields]


def read(view: memoryview) -> Optional[Tuple[int, Page]]:
    """(generation, page) of the newest intact half; None when neither is intact."""
    best: Optional[Tuple[int, Page]] = None
    for offset in (0, _HALF):
        candidate = _read_half(bytes(view[offset : offset + _HALF]))
        if candidate is not None and (best is None or candidate[0] > best[0]):
            best = candidate
    return best


def _read_half(half: bytes) -> Optional[Tuple[int, Page]]:
    magic, generation, length = _HEAD.unpack_from(half)
    end = _HEAD.size + length
    if magic != _MAGIC or length > _CAPACITY:
        return None
    if algorithm("blake2b").leaf(half[:end]) != half[end : end + _DIGEST]:
        return None
    try:
        return generation, parse_page(parse.parse_json_object(half[_HEAD.size : end]))
    except (ValueError, TypeError, KeyError):
        return None


def parse_page(body: Dict[str, Any]) -> Page:
    """A page that was written as JSON, every value of its type. Raises ValueError, TypeError, KeyError."""
    owner = body["owner"]
    if not isinstance(owner, (list, tuple)) or len(owner) != 2 or not all(map(_is_count, owner)):
        raise ValueError(f"owner is {str(owner)[:80]}")
    if not body.keys() <= _EMPTY.keys():
        raise ValueError(f"a page has no {min(body.keys() - _EMPTY.keys())[:80]!r}")
    entries = {**_EMPTY, **body, "owner": (owner[0], owner[1])}
    for name, kind in _KINDS:
        value = entries[name]
        if kind is int:
            good = _is_count(value)
        else:
            good = isinstance(value, kind)
        if kind is str and good and not value.isascii():
            value.encode()  # half of a surrogate pair is no text
        if not good:
            raise ValueError(f"{name} is {str(value)[:80]!r}")
    state = _STATES.get(entries["state"])
    if state is None:
        raise ValueError(f"state is {entries['state'][:80]!r}")
    return Page(
        state,
        CaptureOrigin(*map(entries.__getitem__, _ORIGIN)),
        entries["epoch"],
        entries["seq"],
        entries["step"],
        ShardFacts(*map(entries.__getitem__, _SHARD)),
        entries["durable"],
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def write(view: memoryview, generation: int, page: Page) -> None:
    """Make `page` current with `generation` (one more than the last). Raises CheckpointError when it does not fit: a
    capture that is begun has room for what comes with its sealing."""
    text = json.dumps(page.to_json(), separators=(",", ":")).encode()
    size = len(text) + (_AT_SEALING if page.state is SlotState.WRITING else 0)
    if size > _CAPACITY:
        raise CheckpointError(f"the control page needs {size} of {_CAPACITY} bytes: shorten the root's path")
    half = _HEAD.pack(_MAGIC, generation, len(text)) + text
    half += algorithm("blake2b").leaf(half)
    at = (generation % 2) * _HALF
    view[at : at + len(half)] = half
