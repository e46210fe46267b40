"""A new object in S3 as a multipart upload: parts in any order and from several threads, visible at the end only."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import Any, Dict, List, Optional

from hyperpod_kit.s3.errors import code_of, to_os_error, was_retried

PART = 16 * 1024 * 1024
"""Bytes of a part; larger for objects that would need more than MAX_PARTS of them."""
MAX_PARTS = 10_000


def part_size(size: int) -> int:
    """Bytes of a part of an object of `size` bytes: a multiple of PART."""
    return max(1, -(-size // (PART * MAX_PARTS))) * PART


class _UploadPart:
    """A part that came in pieces: held until it is whole."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.received = 0


class S3Writer:
    """See Writer. Pieces that are whole parts are sent at once; others are put together in memory first."""

    def __init__(self, client: Any, where: Dict[str, str], url: str, size: int) -> None:
        self._client = client
        self._where = where
        self._url = url
        self._size = size
        self._part = part_size(size)
        self.align = 1
        self._lock = threading.Lock()
        self._upload: Optional[str] = None
        self._sent: Dict[int, Dict[str, Any]] = {}
        self._open: Dict[int, _UploadPart] = {}
        self._single = b"" if size <= self._part else None

    def write(self, view: memoryview, offset: int) -> None:
        """See Writer."""
        if offset + len(view) > self._size:
            raise OSError(errno.EFBIG, f"byte {offset + len(view)} of {self._size}", self._url)
        at = 0
        while at < len(view):
            number, inside = divmod(offset + at, self._part)
            part_bytes = min(self._part, self._size - number * self._part)
            piece = view[at : at + part_bytes - inside]
            at += len(piece)
            if len(piece) == part_bytes:
                self._upload_part_or_hold_single(number, bytes(piece))
                continue
            with self._lock:
                part = self._open.setdefault(number, _UploadPart(part_bytes))
                part.data[inside : inside + len(piece)] = piece
                part.received += len(piece)
                if part.received < part_bytes:
                    continue
                del self._open[number]
            self._upload_part_or_hold_single(number, bytes(part.data))

    def _upload_part_or_hold_single(self, number: int, body: bytes) -> None:
        if self._single is not None:
            self._single = body
            return
        try:
            with self._lock:
                if self._upload is None:
                    self._upload = self._client.create_multipart_upload(ChecksumAlgorithm="CRC32", **self._where)[
                        "UploadId"
                    ]
            done = self._client.upload_part(
                PartNumber=number + 1, UploadId=self._upload, Body=body, ChecksumAlgorithm="CRC32", **self._where
            )
        except Exception as err:
            raise to_os_error(err, self._url, "written") from None
        entry = {"PartNumber": number + 1, "ETag": done["ETag"]}
        if "ChecksumCRC32" in done:
            entry["ChecksumCRC32"] = done["ChecksumCRC32"]
        with self._lock:
            self._sent[number] = entry

    def finish(self) -> None:
        """See Writer."""
        if self._single is not None:
            if len(self._single) != self._size:
                raise OSError(errno.EIO, f"not all of {self._size} bytes were written", self._url)
            self._complete_tolerating_lost_response(
                lambda: self._client.put_object(
                    Body=self._single, IfNoneMatch="*", ChecksumAlgorithm="CRC32", **self._where
                )
            )
            return
        parts: List[Dict[str, Any]] = [self._sent[number] for number in sorted(self._sent)]
        if len(parts) != -(-self._size // self._part):
            raise OSError(
                errno.EIO, f"{len(parts)} parts of {self._part} bytes of {self._size} were written", self._url
            )
        self._complete_tolerating_lost_response(
            lambda: self._client.complete_multipart_upload(
                UploadId=self._upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*", **self._where
            )
        )
        self._upload = None

    def _complete_tolerating_lost_response(self, send_last_request: Any) -> None:
        try:
            send_last_request()
        except Exception as err:
            # The first answer may have been lost: then the upload is gone, or our own object is in the way.
            if (
                was_retried(err)
                and code_of(err) in ("NoSuchUpload", "PreconditionFailed")
                and self._is_object_complete()
            ):
                return
            raise to_os_error(err, self._url, "written") from None

    def _is_object_complete(self) -> bool:
        """Return whether an object of this size exists under the name, which only this writer uses (attempt, rank)."""
        try:
            return int(self._client.head_object(**self._where)["ContentLength"]) == self._size
        except Exception as err:
            raise to_os_error(err, self._url, "written") from None

    def abort(self) -> None:
        """See Writer."""
        upload, self._upload = self._upload, None
        self._open.clear()
        if upload is not None:
            # What cannot be taken back now is what the bucket's lifecycle rule is for.
            with contextlib.suppress(Exception):
                self._client.abort_multipart_upload(UploadId=upload, **self._where)
