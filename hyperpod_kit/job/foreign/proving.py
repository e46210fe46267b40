"""Reads the bytes of a checkpoint of another framework once in its life, in threads here or on the nodes of a step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.job.foreign.archive import proof_level_of_file
from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete, weakest
from hyperpod_kit.job.foreign.proven import FileProof, ProvenFiles, file_size_and_mtime_or_none

THREADS = 8
"""Files that one process reads at a time: computing a CRC-32 releases the interpreter lock."""


Elsewhere = Callable[[str, Mapping[str, int]], Iterable[FileProof]]
"""elsewhere(name of a checkpoint, its unproven files -> bytes) -> proofs by other processes. A file may be left out."""


def read_unproven_files_and_weakest_proof(
    root: str,
    candidate: ForeignCandidate,
    proven: Optional[ProvenFiles] = None,
    elsewhere: Optional[Elsewhere] = None,
    threads: int = THREADS,
) -> str:
    """Read the files of a checkpoint that are not proven yet, and return how far it is proven, of candidate.PROOFS.

    What was read is recorded in `proven`, also when an error ends the reading early.

    Raises Incomplete or another CheckpointError for what is damaged, OSError for what cannot be read.
    """
    structure = candidate.structure()
    files = [os.path.relpath(path, root) for path in structure.files]
    recorded_proofs: Dict[str, str] = {}
    if proven:
        recorded_proofs = proven.proofs_of_unchanged_files(candidate.name, files)
    fresh: List[FileProof] = []
    try:
        if elsewhere:
            unproven_sizes = {
                file: os.path.getsize(os.path.join(root, file)) for file in files if file not in recorded_proofs
            }
            _collect_proofs_or_raise_incomplete(elsewhere(candidate.name, unproven_sizes), fresh)
        collected_files = {file_proof.file for file_proof in fresh}
        _collect_proofs_or_raise_incomplete(
            read_and_prove_files(
                root, [file for file in files if file not in recorded_proofs and file not in collected_files], threads
            ),
            fresh,
        )
    finally:
        if proven and fresh:
            with contextlib.suppress(OSError):  # then these files are read again next time
                proven.record_file_proofs(candidate.name, fresh)
    proofs = {**recorded_proofs, **{one.file: one.proof for one in fresh}}
    return weakest((structure.proof, *(proofs[file] for file in files)))


def left_to_prove(root: str, candidate: ForeignCandidate, proven: ProvenFiles) -> List[str]:
    """Return the files of a checkpoint that are not proven yet, the largest first. Raises CheckpointError, OSError."""
    files = {os.path.relpath(path, root): path for path in candidate.structure().files}
    recorded_proofs = proven.proofs_of_unchanged_files(candidate.name, files)
    return sorted(files.keys() - recorded_proofs.keys(), key=lambda file: (-os.path.getsize(files[file]), file))


def read_and_prove_files(root: str, files: List[str], threads: int = THREADS) -> Iterator[FileProof]:
    """Yield the proofs of files below the root, in no order. Raises OSError."""
    if len(files) < 2:
        yield from (_read_and_prove_file(root, file) for file in files)
        return
    with ThreadPoolExecutor(threads) as pool:
        futures: List[Future[FileProof]] = [pool.submit(_read_and_prove_file, root, file) for file in files]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _read_and_prove_file(root: str, file: str) -> FileProof:
    """Return the proof of a file, with the reason for a damaged one. Raises OSError, also for a file that is gone."""
    path = os.path.join(root, file)
    before = file_size_and_mtime_or_none(path)
    if before is None:
        raise FileNotFoundError(f"{file} is gone")
    try:
        proof, reason = proof_level_of_file(path), ""
    except CheckpointError as err:
        proof, reason = "", str(err)
    if file_size_and_mtime_or_none(path) != before:
        return FileProof(file, "", before, f"{os.path.basename(file)} changed while it was read")
    return FileProof(file, proof, before, reason)


def _collect_proofs_or_raise_incomplete(proofs: Iterable[FileProof], collected: List[FileProof]) -> None:
    """Append the proofs to `collected`. Raises Incomplete at the first damaged file."""
    for file_proof in proofs:
        if not file_proof.proof:
            raise Incomplete(file_proof.reason)
        collected.append(file_proof)
