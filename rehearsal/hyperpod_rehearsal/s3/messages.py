"""A request and an answer of the endpoint, free of HTTP plumbing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Sequence

from hyperpod_rehearsal.s3.body import RequestBody
from hyperpod_rehearsal.s3.bucket import Conditions, OpenRange
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.objects import STORAGE_CLASS, STORAGE_CLASSES, Attributes

KEPT_HEADERS = ("content-type", "cache-control", "content-disposition", "content-language", "expires")


@dataclass(frozen=True)
class S3Request:
    """headers: lower-case names; query: decoded, last value of each name; key: empty for bucket requests;
    read_only_prefixes: what keys of this bucket begin with that whoever asks may read only."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: RequestBody
    read_only_prefixes: Sequence[str] = ()

    def may_write(self, key: str) -> bool:
        """Return whether the requester may write the object of that key."""
        return not key.startswith(tuple(self.read_only_prefixes))

    def write_conditions(self) -> Conditions:
        """The conditional headers of a write."""
        return Conditions(self.headers.get("if-match"), self.headers.get("if-none-match"))

    def object_attributes(self) -> Attributes:
        """Return what the request sets on a new object. Raises S3Error InvalidStorageClass."""
        kept = {name: self.headers[name] for name in KEPT_HEADERS if name in self.headers}
        kept.setdefault("content-type", "binary/octet-stream")
        encoding = [
            item.strip()
            for item in self.headers.get("content-encoding", "").split(",")
            if item.strip() not in ("", "aws-chunked")
        ]
        if encoding:
            kept["content-encoding"] = ",".join(encoding)
        storage_class = self.headers.get(STORAGE_CLASS, "STANDARD")
        if storage_class not in STORAGE_CLASSES:
            raise S3Error(400, "InvalidStorageClass", "The storage class you specified is not valid")
        metadata = {name: value for name, value in self.headers.items() if name.startswith("x-amz-meta-")}
        return Attributes(kept, metadata).with_storage_class(storage_class)

    def query_integer(self, name: str, default: int) -> int:
        """A number of the query. Raises S3Error InvalidArgument."""
        value = self.query.get(name) or str(default)
        if not value.isdigit():
            raise S3Error(400, "InvalidArgument", f"Provided {name} not an integer or within integer range: {value}")
        return int(value)


@dataclass(frozen=True)
class Response:
    """An answer: either `body`, or the bytes of `ranges`, whose files the sender closes."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ranges: Sequence[OpenRange] = ()

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return len(self.body) + sum(item.length for item in self.ranges)


def xml_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is an XML document."""
    return Response(status, {"Content-Type": "application/xml", **(headers or {})}, body)
