"""Megatron-LM: `iter_0000100/`, and `latest_checkpointed_iteration.txt`, which is written when a save has ended.

The tracker is a hint that may be stale or torn (it is overwritten in place). An iteration above it has not ended.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Iterator, List, Optional

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.foreign import dcp
from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete, Structure
from hyperpod_kit.untrusted import files

TRACKER = "latest_checkpointed_iteration.txt"


def detect(root: str) -> Iterator[ForeignCandidate]:
    """Yield the `iter_N` directories of a save directory. Raises OSError."""
    for entry in os.scandir(root):
        match = re.fullmatch(r"iter_(\d{7,})", entry.name)
        if match and entry.is_dir():
            step = int(match.group(1))
            yield ForeignCandidate(
                "megatron", entry.name, step, partial(check_save_ended_and_files_present, root, entry.path, step)
            )


def iteration_in_tracker_file(root: str) -> Optional[int]:
    """Return the iteration in the tracker; None when it is not there or holds no number (`release`, a torn write)."""
    try:
        text = files.read_small_regular_file(os.path.join(root, TRACKER), most=4096).decode("ascii", "replace").strip()
    except (FileNotFoundError, Untrusted):
        return None
    if not text.isdigit() or len(text) >= 20:
        return None
    return int(text)


def check_save_ended_and_files_present(root: str, directory: str, step: int) -> Structure:
    """Return the structure, with the files of all ranks.

    Raises Incomplete when the tracker does not say that the save has ended, or when files are missing, and OSError.
    """
    if os.path.isfile(os.path.join(directory, dcp.METADATA)):  # torch_dist, its own mark inside
        return dcp.check_named_files_present(directory)
    last = iteration_in_tracker_file(root)
    if last is None:
        raise Incomplete(f"{TRACKER} names no iteration: the save did not end")
    if step > last:
        raise Incomplete(f"{TRACKER} says {last}: the save did not end")
    files: List[str] = []
    for base, _, names in os.walk(directory):
        files += [os.path.join(base, name) for name in names if name.endswith((".pt", ".distcp"))]
    ranks = [path for path in files if os.path.basename(path) == "model_optim_rng.pt"]
    if not ranks:
        raise Incomplete("it has no model_optim_rng.pt")
    return Structure(tuple(sorted(files)))
