"""Immutable files that hold the bytes of objects and parts, and atomic JSON documents beside them.

A blob is written once under a fresh name and never changed, so a document that names it is all that must be
switched atomically. Killing the process at any moment leaves either the old or the new document and at worst
blobs that nobody names, which the next start removes. Nothing is fsynced: a rehearsal need not survive a
power cut.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import IO, Any, Iterable

from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.s3.objects import Segment


class BlobDirectory:
    """The blobs of one bucket."""

    def __init__(self, root: Path) -> None:
        self.root = root
        by_descriptor.make_directories(root)

    def path(self, name: str) -> Path:
        """Where the blob of that name lies."""
        return self.root / name[:2] / name

    def create_blob(self) -> tuple[str, IO[bytes]]:
        """A fresh name and the unbuffered file to write its bytes to."""
        name = uuid.uuid4().hex
        path = self.path(name)
        by_descriptor.make_parents(path)
        return name, by_descriptor.open_stream_for_writing(path, "xb", buffering=0)

    def hard_link_segment(self, source: BlobDirectory, segment: Segment) -> Segment:
        """Hard-link a segment's bytes under a new name, so that each object owns its bytes."""
        name = uuid.uuid4().hex
        path = self.path(name)
        by_descriptor.make_parents(path)
        by_descriptor.link(source.path(segment.blob), path)
        return Segment(name, segment.size)

    def delete_blobs(self, names: Iterable[str]) -> None:
        """Remove blobs; those already gone are no error."""
        for name in names:
            by_descriptor.unlink(self.path(name), missing_ok=True)

    def delete_blobs_except(self, keep: set[str]) -> None:
        """Remove every blob that `keep` does not name: leftovers of a process that was killed."""
        for path in self.root.glob("*/*"):
            if path.name not in keep:
                by_descriptor.unlink(path, missing_ok=True)


def write_json_document(path: Path, content: Any) -> None:
    """Replace a JSON document atomically."""
    by_descriptor.make_parents(path)
    atomic_file.write_atomically(path, json.dumps(content).encode())


def delete_partials_and_read_documents(root: Path, pattern: str) -> list[tuple[Path, Any]]:
    """Every JSON document under `root` that matches; half-written leftovers are removed on the way."""
    for leftover in root.glob(f"{pattern}.*.partial"):
        by_descriptor.unlink(leftover, missing_ok=True)
    return [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(root.glob(pattern))]
