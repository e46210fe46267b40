"""Files whose own format proves something: torch.save's zip archives carry a CRC-32 a record, safetensors its length.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
from typing import List

from hyperpod_kit.job.foreign.candidate import Incomplete
from hyperpod_kit.untrusted.parse import parse_json_object

_PIECE = 1 << 20
_LONGEST_HEADER = 100 << 20
"""The limit of the safetensors library itself."""


def proof_level_of_torch_file(path: str) -> str:
    """Return how far a torch.save file is proven: `crc` when every record is what was written.

    torch.serialization.set_crc32_options(False) writes archives without true sums: when no record at all fits its sum,
    nothing was proven but that the archive is whole (`complete`). A file from before torch 1.6 is no archive: `marker`.
    Raises Incomplete, OSError.
    """
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
                raise Incomplete(f"{name} unpacks to much more than it has")
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
        raise Incomplete(f"{name} is no whole archive: {err}") from err
    except Exception as err:  # zipfile and zlib raise whatever a damaged directory leads them to
        raise Incomplete(f"{name} is no whole archive: {err}") from err
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
                raise ValueError("a tensor ends nowhere")
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
