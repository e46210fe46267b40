"""Sets damaged checkpoints of other frameworks aside: a trainer that comes to that step again must not meet them.

NVIDIA-NeMo/Automodel pull request 3390: the replay died of FileExistsError on the directory that was passed over.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import time
from typing import Iterable, List, Tuple

from hyperpod_kit.job.foreign.candidate import well_named
from hyperpod_kit.untrusted import by_descriptor

INVALID_SUFFIX = ".invalid-"


def set_aside(root: str, names: Iterable[str], *, now: float) -> List[Tuple[str, str]]:
    """Rename these checkpoints below the root, and return (name, new name) of those that could be renamed.

    `now`: Unix seconds, part of the new name. Called only by the supervisor of a job, or by the wrapper that decides a
    launch, when no rank runs. What cannot be renamed stays: the job may still go on.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    done: List[Tuple[str, str]] = []
    top = os.path.realpath(root)
    for name in filter(well_named, names):
        new = f"{name}{INVALID_SUFFIX}{stamp}"
        try:
            if not os.path.lexists(os.path.join(root, new)):
                by_descriptor.rename(os.path.join(top, name), os.path.join(top, new))
                done.append((name, new))
        except OSError:
            continue
    return done
