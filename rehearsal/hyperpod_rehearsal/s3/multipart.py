"""Multipart uploads of one bucket: begun, filled with parts, completed or aborted; they survive a restart."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json
from hyperpod_rehearsal.s3.blobs import BlobDirectory, delete_partials_and_read_documents, write_json_document
from hyperpod_rehearsal.s3.errors import S3Error
from hyperpod_rehearsal.s3.objects import Attributes, Received, UploadPart

MINIMUM_PART = 5 << 20
"""Bytes that every part but the last must have, as in S3."""


@dataclass
class Upload:
    """One upload. initiated: Unix seconds; checksum_algorithm: lower case, empty when the client chose none."""

    upload_id: str
    key: str
    initiated: float
    attributes: Attributes
    checksum_algorithm: str = ""
    checksum_kind: str = "COMPOSITE"
    parts: dict[int, UploadPart] = field(default_factory=dict)


class Uploads:
    """The open uploads of a bucket. Safe for threads."""

    def __init__(self, root: Path, blobs: BlobDirectory) -> None:
        self._root = root
        self._blobs = blobs
        self._lock = threading.RLock()
        self._open: dict[str, Upload] = {}
        for path, raw in delete_partials_and_read_documents(root, "*/upload.json"):
            upload = dataclass_from_json(Upload, raw)
            for _, part in delete_partials_and_read_documents(path.parent, "part-*.json"):
                upload.parts[part["number"]] = dataclass_from_json(UploadPart, part)
            self._open[upload.upload_id] = upload

    def blob_names(self) -> set[str]:
        """The blobs that open uploads hold."""
        return {part.segment.blob for upload in self._open.values() for part in upload.parts.values()}

    def create_upload(self, key: str, attributes: Attributes, algorithm: str, kind: str) -> Upload:
        """Open an upload for `key`."""
        upload = Upload(uuid.uuid4().hex, key, time.time(), attributes, algorithm, kind)
        with self._lock:
            write_json_document(self._root / upload.upload_id / "upload.json", dataclass_to_json(upload))
            self._open[upload.upload_id] = upload
        return upload

    def find_open_upload(self, upload_id: str, key: str) -> Upload:
        """The open upload. Raises S3Error NoSuchUpload."""
        upload = self._open.get(upload_id)
        if upload is None or upload.key != key:
            raise S3Error(
                404,
                "NoSuchUpload",
                "The specified upload does not exist. The upload ID may be invalid, "
                "or the upload may have been aborted or completed.",
            )
        return upload

    def list_open_uploads(self, prefix: str = "") -> list[Upload]:
        """The open uploads whose key starts with `prefix`, by key and then by age."""
        with self._lock:
            chosen = [upload for upload in self._open.values() if upload.key.startswith(prefix)]
        return sorted(chosen, key=lambda upload: (upload.key, upload.initiated))

    def record_part(self, upload: Upload, number: int, received: Received) -> UploadPart:
        """Keep a part; one of the same number is replaced. Raises S3Error NoSuchUpload after an abort."""
        part = UploadPart(number, received.md5, time.time(), received.segment, received.checksums)
        with self._lock:
            self.find_open_upload(upload.upload_id, upload.key)
            write_json_document(self._root / upload.upload_id / f"part-{number}.json", dataclass_to_json(part))
            replaced = upload.parts.get(number)
            upload.parts[number] = part
        if replaced is not None:
            self._blobs.delete_blobs([replaced.segment.blob])
        return part

    def select_and_validate_parts(self, upload: Upload, requested: Sequence[tuple[int, str]]) -> list[UploadPart]:
        """The parts that a completion names as (number, ETag). Raises S3Error where S3 would refuse."""
        if not requested:
            raise S3Error(400, "MalformedXML", "You must specify at least one part")
        numbers = [number for number, _ in requested]
        if any(later <= earlier for earlier, later in zip(numbers, numbers[1:])):
            raise S3Error(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        chosen = []
        for number, etag in requested:
            part = upload.parts.get(number)
            if part is None or part.etag != etag.strip('"'):
                raise S3Error(400, "InvalidPart", f"Part {number} was not uploaded or its ETag does not match.")
            chosen.append(part)
        if any(part.segment.size < MINIMUM_PART for part in chosen[:-1]):
            raise S3Error(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
        return chosen

    def remove_upload(self, upload: Upload, parts_to_keep: Sequence[UploadPart] = ()) -> None:
        """Remove a completed or aborted upload and delete the blobs of its parts.

        `parts_to_keep`: parts that now belong to an object.
        """
        kept = {part.segment.blob for part in parts_to_keep}
        with self._lock:
            if self._open.pop(upload.upload_id, None) is None:
                return
            by_descriptor.remove_tree(self._root / upload.upload_id, ignore_errors=True)
            names = [part.segment.blob for part in upload.parts.values() if part.segment.blob not in kept]
        self._blobs.delete_blobs(names)
