"""What the store knows about an object and about a part of an upload: plain data with a JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

STORAGE_CLASS = "x-amz-storage-class"
STORAGE_CLASSES = (
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "DEEP_ARCHIVE",
    "GLACIER_IR",
)
ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
"""What cannot be read before it is restored, and nothing is restored here."""


@dataclass(frozen=True)
class Segment:
    """A run of an object's bytes: the immutable file that holds them and their number."""

    blob: str
    size: int


@dataclass(frozen=True)
class Attributes:
    """What a client says about an object when it is created.

    headers: the headers that S3 gives back (Content-Type, Cache-Control, the storage class), lower-case names;
    metadata: the x-amz-meta-* headers, lower-case names with that prefix.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def storage_class(self) -> str:
        """STANDARD unless another was asked for; S3 gives the header back only then."""
        return self.headers.get(STORAGE_CLASS, "STANDARD")

    def with_storage_class(self, storage_class: str) -> Attributes:
        """The same in another storage class."""
        headers = {name: value for name, value in self.headers.items() if name != STORAGE_CLASS}
        return Attributes(
            headers if storage_class == "STANDARD" else {**headers, STORAGE_CLASS: storage_class}, self.metadata
        )


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


@dataclass(frozen=True)
class Received:
    """A body that has arrived and was checked: where it lies, its md5 and the checksums that came with it."""

    segment: Segment
    md5: str
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class UploadPart:
    """A part of a multipart upload. etag: its md5, without quotes; modified: Unix seconds."""

    number: int
    etag: str
    modified: float
    segment: Segment
    checksums: Mapping[str, str]
