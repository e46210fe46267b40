"""A task of `job prove` in a step: reads its share of a checkpoint's files and writes a line about each of them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, Optional

from hyperpod_kit.job.foreign import newest, proving
from hyperpod_kit.job.foreign.candidate import ForeignCandidate
from hyperpod_kit.job.foreign.proven import FileProof, FileState, ProvenFiles

BEAT = 5.0
"""Seconds between two signs of life."""


def prove_share_of_files(
    root: str, proven: ProvenFiles, checkpoint_name: str, index: int, task_count: int, write_line: Callable[[str], None]
) -> None:
    """Prove every `task_count`-th of the files that are not proven yet, from `index` on, the largest first.

    Raises OSError for a file that cannot be read: the rest of the share is then read by `job run` (or `job prove`).
    """
    over = threading.Event()
    threading.Thread(target=_beat, args=(index, over, write_line), daemon=True).start()
    try:
        candidate = find(root, checkpoint_name)
        files: List[str] = []
        if candidate:
            files = proving.left_to_prove(root, candidate, proven)[index::task_count]
        for file_proof in proving.read_and_prove_files(root, files):
            write_line(
                json.dumps(
                    {
                        "task": index,
                        "file": file_proof.file,
                        "proof": file_proof.proof,
                        "why": file_proof.reason,
                        "size": file_proof.state.size,
                        "changed": file_proof.state.changed,
                    }
                )
            )
    finally:
        over.set()
    write_line(json.dumps({"task": index, "over": True}))


def find(root: str, name: str) -> Optional[ForeignCandidate]:
    """Return the checkpoint with this name, None when there is none. Raises OSError."""
    for candidate in newest.candidates(root):
        if candidate.name == name:
            return candidate
    return None


def parse_file_proof_or_none(message: Dict[str, Any]) -> Optional[FileProof]:
    """Return what a line of `prove_share_of_files` says about a file; None for a line that says something else."""
    file, proof, reason, size, changed = (message.get(key) for key in ("file", "proof", "why", "size", "changed"))
    if not (isinstance(file, str) and isinstance(proof, str) and isinstance(reason, str)):
        return None
    if type(size) is not int or type(changed) is not int:
        return None
    return FileProof(file, proof, FileState(size, changed), reason)


def _beat(index: int, over: threading.Event, say: Callable[[str], None]) -> None:
    while not over.wait(BEAT):
        say(json.dumps({"task": index}))
