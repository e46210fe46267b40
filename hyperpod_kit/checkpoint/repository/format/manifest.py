"""MANIFEST.json: the commit. It proves the rest of an attempt, and itself.

The file is canonical JSON (sorted keys, no spaces, ASCII) of everything but `self`, then `self`, the digest of exactly
those bytes. A file that differs from its own re-encoding in one byte is no manifest.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from hyperpod_kit.checkpoint.repository.format import digest, layout
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted.text import counted

_TIME = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """The time as all files of the format write it, UTC."""
    return time.strftime(_TIME, time.gmtime())


def format_time(seconds_since_1970: float) -> str:
    """Format Unix seconds as all files of the format write a time, in UTC."""
    return time.strftime(_TIME, time.gmtime(seconds_since_1970))


def parse_time(text: str) -> Optional[float]:
    """Return the Unix seconds of a time in the format's notation; None when it is none."""
    import calendar  # of a reader of times: it brings datetime, and each trainer and agent would load both at its start

    try:
        return float(calendar.timegm(time.strptime(text, _TIME)))
    except ValueError:
        return None


def encode_number(value: float) -> Union[float, str]:
    """Return a number as all files of the format write it: nan and infinities, which JSON lacks, as text."""
    if math.isfinite(value):
        return value
    return repr(value)


def decode_numbers(body: Mapping[str, Any]) -> Dict[str, float]:
    """Undo `encode_number` for the values of a dictionary. Raise ValueError, TypeError for what is no number."""
    return {name: float(value) if isinstance(value, str) else value for name, value in body.items()}


@dataclass(frozen=True)
class FileRecord:
    """A file of the attempt: its name, size in bytes, digest; for a shard also the rank that wrote it."""

    file: str
    size: int
    root: str
    rank: Optional[int] = None

    def to_json(self) -> Dict[str, Any]:
        body: Dict[str, Any] = {"file": self.file, "size": self.size, "root": self.root}
        if self.rank is None:
            return body
        return {**body, "rank": self.rank}

    @classmethod
    def of(cls, file: str, data: bytes) -> FileRecord:
        """Return the record of a small file. Raise CheckpointError when it is too large to be read whole again."""
        if len(data) > layout.LARGEST_SMALL:
            raise CheckpointError(f"{file} would have {len(data)} bytes, expected at most {layout.LARGEST_SMALL}")
        return cls(file, len(data), digest.small_object_digest(data))


@dataclass(frozen=True)
class Manifest:
    """What a committed checkpoint consists of. `total_bytes` is the sum over shards, `tensors` their number.

    `parent`: {"seq", "step"} of the checkpoint that this run restored. `line`: the epoch of the start from scratch that
    it descends from; 0 when that is not known, None in what builds before 0.1.0 wrote. `metrics`: numbers that the
    trainer gave, nan and infinities too, for the retention policy `Best`. `job`: what the scheduler says, and the
    trainer's mesh. `rebuilt`: when it was made again by `checkpoint repair`; `job` and `versions` are lost then, and
    `time` is as storage had it.
    """

    run: str
    run_id: str
    epoch: int
    seq: int
    step: int
    world: int
    plan: str
    digest: str
    chunk: int
    total_bytes: int
    tensors: int
    time: str
    shards: Tuple[FileRecord, ...]
    extra: FileRecord
    index: Optional[FileRecord] = None
    metrics: Dict[str, float] = field(default_factory=dict)
    parent: Optional[Dict[str, int]] = None
    line: Optional[int] = None
    job: Dict[str, Any] = field(default_factory=dict)
    versions: Dict[str, str] = field(default_factory=dict)
    rebuilt: Optional[str] = None

    def encode(self) -> bytes:
        """The bytes of MANIFEST.json."""
        body: Dict[str, Any] = {key: value for key, value in self.__dict__.items() if value is not None}
        body["format"] = layout.FORMAT
        body["shards"] = [shard.to_json() for shard in self.shards]
        body["extra"] = self.extra.to_json()
        body["metrics"] = {name: encode_number(value) for name, value in self.metrics.items()}
        if self.index is not None:
            body["index"] = self.index.to_json()
        return seal_json(body)


def seal_json(body: Dict[str, Any]) -> bytes:
    """Canonical JSON of `body` with its own digest as the last key `self`."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
    return text[:-1] + b',"self":"' + digest.small_object_digest(text).encode() + b'"}\n'


def parse_sealed_json(data: bytes, what: str) -> Dict[str, Any]:
    """Undo `seal_json`: return the body. Raise CheckpointError unless every byte is as it was written; `what`
    names the file in the message."""
    if not data:
        raise CheckpointError(f"{what} is empty")
    try:
        body = json.loads(data.decode("ascii"))
        body.pop("self")
        reencoded = seal_json(body)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CheckpointError(f"{what} is torn or damaged: it does not parse") from None
    if reencoded != data:
        raise CheckpointError(f"{what} is torn or damaged: its own digest does not match")
    return dict(body)


def decode(data: bytes) -> Manifest:
    """Parse MANIFEST.json. Raises CheckpointError when it is torn, damaged or of another format."""
    body = parse_sealed_json(data, layout.MANIFEST_FILE)
    form = body.pop("format", None)
    if form != layout.FORMAT:
        raise CheckpointError(f"{layout.MANIFEST_FILE} has format {form!r}, expected {layout.FORMAT!r}")
    try:
        shards: List[FileRecord] = [FileRecord(**entry) for entry in body.pop("shards")]
        extra = FileRecord(**body.pop("extra"))
        index = None
        if "index" in body:
            index = FileRecord(**body.pop("index"))
        body["metrics"] = decode_numbers(body.get("metrics") or {})
        field_names = set(Manifest.__dataclass_fields__)
        # A newer minor version may add keys; what this reader needs must be there.
        decoded = Manifest(
            shards=tuple(shards), extra=extra, index=index, **{k: v for k, v in body.items() if k in field_names}
        )
    except (TypeError, KeyError) as err:
        raise CheckpointError(f"{layout.MANIFEST_FILE} lacks a field: {err}") from None
    except (AttributeError, ValueError):
        raise CheckpointError(f"{layout.MANIFEST_FILE} has metrics that are no numbers") from None
    require_valid_fields(decoded)
    if decoded.world != len(decoded.shards) or [shard.rank for shard in decoded.shards] != list(range(decoded.world)):
        raise CheckpointError(
            f"{layout.MANIFEST_FILE} names {counted(len(decoded.shards), 'shard')} of {decoded.world}"
        )
    return decoded


_LARGEST_CHUNK = digest.CHUNK
"""Whoever reads has buffers of this size, and writes no other one."""
_DIGEST = re.compile("[a-z0-9][a-z0-9_-]{0,31}")
_HEX = re.compile("[0-9a-f]{1,128}")


def require_valid_fields(manifest: Manifest) -> None:
    """Raise CheckpointError unless all fields have the types, bounds and names that later readers rely on."""
    for name in ("run", "run_id", "plan", "digest", "time"):
        _require(name, getattr(manifest, name), isinstance(getattr(manifest, name), str))
    _require("digest", manifest.digest, _DIGEST.fullmatch(manifest.digest) is not None)
    for name in ("epoch", "seq", "step", "world", "total_bytes", "tensors"):
        _require(name, getattr(manifest, name), is_count(getattr(manifest, name)))
    _require("line", manifest.line, manifest.line is None or is_count(manifest.line))
    for name in ("job", "versions", *(["parent"] if manifest.parent is not None else [])):
        _require(name, getattr(manifest, name), isinstance(getattr(manifest, name), dict))
    _require("rebuilt", manifest.rebuilt, manifest.rebuilt is None or isinstance(manifest.rebuilt, str))
    _require(
        "metrics",
        manifest.metrics,
        all(type(value) in (int, float) and _fits_float(value) for value in manifest.metrics.values()),
    )
    _require("chunk", manifest.chunk, is_count(manifest.chunk) and 0 < manifest.chunk <= _LARGEST_CHUNK)
    files = [(layout.EXTRA_FILE, manifest.extra), *([(layout.INDEX_FILE, manifest.index)] if manifest.index else [])]
    files += [(layout.shard_file(number), record) for number, record in enumerate(manifest.shards)]
    for name, record in files:
        _require("file", record.file, record.file == name)
        _require(f"size of {name}", record.size, is_count(record.size))
        small = record.rank is None
        _require(f"size of {name}", record.size, not small or record.size <= layout.LARGEST_SMALL)
        algorithm, _, value = record.root.partition(":") if isinstance(record.root, str) else ("", "", "")
        named = algorithm == (digest.SMALL if small else manifest.digest)
        _require(f"root of {name}", record.root, named and _HEX.fullmatch(value) is not None)


def _fits_float(value: Union[int, float]) -> bool:
    try:
        float(value)
        return True
    except OverflowError:
        return False


def is_count(value: Any) -> bool:
    """Return whether a value from JSON is a number of bytes, steps or files."""
    return type(value) is int and 0 <= value < 1 << 63


def _require(name: str, value: Any, is_valid: bool) -> None:
    if not is_valid:
        raise CheckpointError(f"{layout.MANIFEST_FILE}: {name} is {str(value)[:80]!r}, which it cannot be")
