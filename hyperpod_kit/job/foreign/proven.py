"""Records of what was proven about the files of other frameworks' checkpoints: `.hpk/proven/`, one for each checkpoint.

With them the bytes of a checkpoint are read once in its life. A file that has another length or time of change since
is proven again; a byte that its disk loses afterwards is not noticed, as its own trainer would not notice it either.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Iterable, NamedTuple, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.foreign.candidate import PROOFS
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor, files, parse

FOLDER = "proven"
_LONGEST = 64 << 20


class FileState(NamedTuple):
    """A file as it was when its bytes were read: bytes, and nanoseconds of its last change."""

    size: int
    changed: int


class FileProof(NamedTuple):
    """How far one file, a path below the root, is proven. `proof`: of candidate.PROOFS; "" for a damaged file, of which
    `reason` says what is wrong. `state`: the file as it was when its bytes were read."""

    file: str
    proof: str
    state: FileState
    reason: str = ""


class ProvenFiles(NamedTuple):
    """The records of one root. `state`: our directory beside the checkpoints."""

    root: str
    state: str

    def proofs_of_unchanged_files(self, checkpoint_name: str, file_names: Iterable[str]) -> Dict[str, str]:
        """Return file -> proof, for the files of a checkpoint that have not changed since. Raises OSError."""
        rows = self._read(checkpoint_name)
        proof_by_file = {}
        for file in file_names:
            size, changed, proof = rows.get(file, (0, 0, ""))
            if proof and file_size_and_mtime_or_none(os.path.join(self.root, file)) == FileState(size, changed):
                proof_by_file[file] = proof
        return proof_by_file

    def record_file_proofs(self, checkpoint_name: str, proofs: Iterable[FileProof]) -> None:
        """Add proofs to the record of a checkpoint, in place of older ones of the same files. Raises OSError."""
        rows = {
            **self._read(checkpoint_name),
            **{file_proof.file: [*file_proof.state, file_proof.proof] for file_proof in proofs},
        }
        path = by_descriptor.resolve_parent(self._path(checkpoint_name))
        by_descriptor.make_directories(os.path.dirname(path), 0o750)
        atomic_file.write_atomically(path, json.dumps({"checkpoint": checkpoint_name, "files": rows}).encode(), 0o640)

    def _path(self, name: str) -> str:
        return os.path.join(self.state, FOLDER, hashlib.sha256(name.encode()).hexdigest()[:32] + ".json")

    def _read(self, name: str) -> Dict[str, Any]:
        """Return the rows of a record by file; none where there is no record, or one that we would not write."""
        try:
            value = parse.parse_json_object(files.read_small_regular_file(self._path(name), most=_LONGEST), _LONGEST)
        except (OSError, ValueError, Untrusted):
            return {}
        rows = value.get("files")
        if value.get("checkpoint") != name or not isinstance(rows, dict):
            return {}
        return {file: row for file, row in rows.items() if _well_formed(row)}


def _well_formed(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 3
        and type(row[0]) is int
        and type(row[1]) is int
        and isinstance(row[2], str)
        and row[2] in PROOFS
    )


def file_size_and_mtime_or_none(path: str) -> Optional[FileState]:
    """Return a file's length and time of change, None when there is no such file. Raises other OSErrors."""
    try:
        file_status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileState(file_status.st_size, file_status.st_mtime_ns)
