"""Writing an object: strictly in order, uploaded in parts, visible when completed and never before."""

from __future__ import annotations

import contextlib
import errno
import threading
from concurrent.futures import Executor, Future
from typing import List, Optional

from hyperpod_rehearsal.standins.fuse.session import Refusal
from hyperpod_rehearsal.standins.fuse.wire import Payload
from hyperpod_rehearsal.standins.mountpoint_s3.client import S3Client, S3Failure

PARTS_IN_FLIGHT = 4


class ObjectWriter:
    """The upload of one object. state: `open`, `done` or `failed`. Safe for threads.

    pid: of the process that opened the file; only its close completes the upload, as another's close may be that of
    a descriptor inherited through fork.
    """

    def __init__(self, client: S3Client, pool: Executor, key: str, pid: int, part_size: int) -> None:
        self._client = client
        self._pool = pool
        self._part_size = part_size
        self._lock = threading.RLock()
        self._buffer = bytearray()
        self._upload: Optional[str] = None
        self._parts: List[Future[str]] = []
        self.key = key
        self.pid = pid
        self.offset = 0
        self.state = "open"
        self.etag = ""

    def write(self, offset: int, data: Payload) -> int:
        """Append bytes; returns how many. Raises Refusal EINVAL and aborts the upload when `offset` is not the end."""
        with self._lock:
            if self.state != "open":
                raise Refusal(errno.EIO, f"upload of {self.key} already terminated")
            if offset != self.offset:
                expected = self.offset
                self.abort()
                raise Refusal(
                    errno.EINVAL,
                    f"out of order write NOT supported by Mountpoint, aborting the upload; "
                    f"expected offset {expected} but got {offset}",
                )
            self._buffer += data
            self.offset += len(data)
            if len(self._buffer) >= self._part_size:
                self._send_part()
            return len(data)

    def _send_part(self) -> None:
        body, self._buffer = bytes(self._buffer), bytearray()
        try:
            if self._upload is None:
                self._upload = self._client.begin_upload(self.key)
            self._parts.append(
                self._pool.submit(self._client.put_part, self.key, self._upload, len(self._parts) + 1, body)
            )
            if len(self._parts) > PARTS_IN_FLIGHT:
                self._parts[-PARTS_IN_FLIGHT - 1].result()  # memory stays bounded
        except S3Failure as err:
            self.abort()
            raise Refusal(errno.EIO, f"put request failed for {self.key}: {err}") from None

    def complete(self) -> None:
        """Publish the object; done already is no error. Raises Refusal EIO when it cannot be or was aborted."""
        with self._lock:
            if self.state == "done":
                return
            if self.state == "failed":
                raise Refusal(errno.EIO, f"upload of {self.key} already terminated")
            try:
                if self._upload is None:
                    self.etag = self._client.put(self.key, bytes(self._buffer))
                else:
                    if self._buffer:
                        self._send_part()
                    etags = [part.result() for part in self._parts]
                    self.etag = self._client.complete_upload(self.key, self._upload, etags)
            except S3Failure as err:
                self.abort()
                raise Refusal(errno.EIO, f"put request failed for {self.key}: {err}") from None
            self.state = "done"
            self._buffer = bytearray()

    def abort(self) -> None:
        """Give the upload up: nothing becomes visible."""
        with self._lock:
            self.state = "failed"
            self._buffer = bytearray()
            if self._upload is not None:
                # What cannot be aborted is left to the bucket's lifecycle rule, as with the real client.
                with contextlib.suppress(S3Failure):
                    self._client.abort_upload(self.key, self._upload)
