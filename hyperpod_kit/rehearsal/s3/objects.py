"""What the store knows about an object and about a part of an upload: plain data with a JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Mapping


@dataclass(frozen=True)
class Segment:
    """A run of an object's bytes: the immutable file that holds them and their number."""

    blob: str
    size: int


@dataclass(frozen=True)
class Attributes:
    """What a client says about an object when it is created.

    headers: the standard headers that S3 gives back (Content-Type, Cache-Control, ...), lower-case names;
    metadata: the x-amz-meta-* headers, lower-case names with that prefix.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checksums:
    """Checksums by algorithm (crc32, crc32c, crc64nvme, sha1, sha256), base64; kind: FULL_OBJECT or COMPOSITE."""

    values: Mapping[str, str] = field(default_factory=dict)
    kind: str = "FULL_OBJECT"


@dataclass(frozen=True)
class ObjectInfo:
    """One object. etag: without quotes; modified: Unix seconds; size: bytes."""

    key: str
    size: int
    etag: str
    modified: float
    segments: tuple[Segment, ...]
    attributes: Attributes
    checksums: Checksums

    def to_json(self) -> dict[str, Any]:
        """The form on disk."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ObjectInfo:
        """Inverse of `to_json`."""
        return cls(
            key=raw["key"], size=raw["size"], etag=raw["etag"], modified=raw["modified"],
            segments=tuple(Segment(**item) for item in raw["segments"]),
            attributes=Attributes(**raw["attributes"]), checksums=Checksums(**raw["checksums"]))


@dataclass(frozen=True)
class Received:
    """A body that has arrived and was checked: where it lies, its md5 and the checksums that came with it."""

    segment: Segment
    md5: str
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """A part of a multipart upload. etag: its md5, without quotes; modified: Unix seconds."""

    number: int
    etag: str
    modified: float
    segment: Segment
    checksums: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The form on disk."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Part:
        """Inverse of `to_json`."""
        return cls(**{**raw, "segment": Segment(**raw["segment"])})
