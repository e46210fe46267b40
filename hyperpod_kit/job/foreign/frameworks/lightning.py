"""Lightning: `epoch=3-step=1200.ckpt` files, and `hpc_ckpt_2.ckpt` of its own Slurm plugin, which says no step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Iterator

from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Structure


def detect(root: str) -> Iterator[ForeignCandidate]:
    """Yield the checkpoint files in the root and in `checkpoints/` whose names say the step. Raises OSError."""
    for directory in (root, os.path.join(root, "checkpoints")):
        if not os.path.isdir(directory):
            continue
        for entry in os.scandir(directory):
            match = re.search(r"step=(\d+)(?:-v\d+)?\.ckpt$", entry.name)
            if match and entry.is_file():
                yield ForeignCandidate(
                    "lightning",
                    os.path.relpath(entry.path, root),
                    int(match.group(1)),
                    partial(Structure, (entry.path,)),
                )
