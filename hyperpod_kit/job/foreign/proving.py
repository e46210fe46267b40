"""Reads the bytes of a checkpoint of another framework once in its life, in threads here or on the nodes of a step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional

from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete, weakest
from hyperpod_kit.job.foreign.proven import FileProof, ProvenFiles, file_size_and_mtime_or_none
from hyperpod_kit.untrusted.parse import parse_json_object

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
    # Of checkpoints of other frameworks alone, as is zipfile: `job run` loads this module before it knows of one.
    from concurrent.futures import Future, ThreadPoolExecutor, as_completed

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


# Files whose own format proves something: torch.save's zip archives carry a CRC-32 a record, safetensors its length.

_PIECE = 1 << 20
_LONGEST_HEADER = 100 << 20
"""The limit of the safetensors library itself."""


def proof_level_of_torch_file(path: str) -> str:
    """Return how far a torch.save file is proven: `crc` when every record is what was written.

    torch.serialization.set_crc32_options(False) writes archives without true sums: when no record at all fits its sum,
    nothing was proven but that the archive is whole (`complete`). A file from before torch 1.6 is no archive: `marker`.
    Raises Incomplete, OSError.
    """
    import zipfile  # as above

    name = os.path.basename(path)
    if os.path.getsize(path) == 0:
        raise Incomplete(f"{name} is empty")
    with open(path, "rb") as file:
        begins_like_zip = file.read(2) == b"PK"
    if not begins_like_zip:
        return "marker"
    try:
        with zipfile.ZipFile(path) as archive:
            records = [entry for entry in archive.infolist() if entry.file_size]
            # torch.save packs nothing; an archive that would unpack to far more is not read.
            if sum(entry.file_size for entry in records) > 2 * os.path.getsize(path) + _PIECE:
                raise Incomplete(f"{name} unpacks to much more than its size allows")
            bad: List[str] = []
            for entry in records:
                try:
                    with archive.open(entry) as stream:
                        while stream.read(_PIECE):
                            pass
                except zipfile.BadZipFile:
                    bad.append(entry.filename)
    except OSError as err:
        if err.errno != errno.EINVAL:  # the archive refers to an offset that no file has
            raise
        raise Incomplete(f"{name} is not a complete archive: {err}") from err
    except Exception as err:  # zipfile and zlib raise whatever a damaged directory leads them to
        raise Incomplete(f"{name} is not a complete archive: {err}") from err
    if bad and len(bad) == len(records) > 1:
        return "complete"
    if bad:
        raise Incomplete(f"{name}: record {bad[0]} is damaged")
    return "crc"


def proof_level_of_safetensors_file(path: str) -> str:
    """Return `complete` when the file is exactly as long as its header says. Raises Incomplete otherwise, OSError."""
    name, size = os.path.basename(path), os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        length = 0
        if len(head) == 8:
            length = struct.unpack("<Q", head)[0]
        if not 0 < length <= min(_LONGEST_HEADER, size - 8):
            raise Incomplete(f"{name} has no safetensors header")
        try:
            entries = parse_json_object(file.read(length), _LONGEST_HEADER)
            ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != "__metadata__"]
            if not all(type(end_offset) is int and 0 <= end_offset < 1 << 63 for end_offset in ends):
                raise ValueError("a tensor has no end")
            end = max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as err:
            raise Incomplete(f"{name} has a damaged header: {err}") from err
    if size != 8 + length + end:
        raise Incomplete(f"{name} has {size} bytes, expected {8 + length + end}")
    return "complete"


def proof_level_of_file(path: str) -> str:
    """Return how far a file is proven, in the way of the format that its name ends in.

    A file of another kind only has to be there and not empty (`marker`). Raises Incomplete, OSError.
    """
    if path.endswith(".safetensors"):
        return proof_level_of_safetensors_file(path)
    if path.endswith((".pt", ".pth", ".bin", ".ckpt", ".distcp")):
        return proof_level_of_torch_file(path)
    if os.path.getsize(path) == 0:
        raise Incomplete(f"{os.path.basename(path)} is empty")
    return "marker"
