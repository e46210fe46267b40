"""Proves the newest checkpoint of another framework while ranks train, as soon as it is whole, so that the start after
a failure has nothing left to read.

This is one process beside `job run`, which takes only processor time that no other process needs.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Callable, Iterator, NamedTuple, Tuple

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.job.foreign import newest, proving
from hyperpod_kit.job.foreign.candidate import MOST_STEPS, well_named
from hyperpod_kit.job.foreign.proven import FileState, ProvenFiles, file_size_and_mtime_or_none
from hyperpod_kit.job.resume import checkpoint_choice
from hyperpod_kit.job.step import srun_step
from hyperpod_kit.system.process import make_parent_death_hook

INTERVAL = 20.0
"""Seconds between two looks at the root. A checkpoint is read when nothing of it has changed between two."""

_END = 5.0


@contextlib.contextmanager
def proving_process_unless_kit_checkpoint(choice: checkpoint_choice.Choice, root: str) -> Iterator[None]:
    """Run `job prove --watch` while the block lasts, unless the root is known to hold our own Manager's checkpoints."""
    if not is_path(root) or (choice.kind == checkpoint_choice.KIT_KIND and choice.source != checkpoint_choice.NONE):
        yield
        return
    argv = [*srun_step.kit_command_on_this_node(), "prove", "--watch", root]
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=make_parent_death_hook(os.getpid()))
    except OSError:  # then the next start reads the checkpoint
        yield
        return
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END)
        except subprocess.TimeoutExpired:  # it hangs in a read of a mount
            process.kill()


def watch(root: str, proven: ProvenFiles, pause: Callable[[float], object] = time.sleep) -> None:
    """Prove each newest checkpoint once it is whole, until the first checkpoint of ours is there or a signal comes."""
    with contextlib.suppress(OSError):  # not every container lets a process lower its priority
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    previous = _Newest()
    while True:
        with contextlib.suppress(OSError):  # the root is away: `job run` itself looks after that
            if any(layout.parse_checkpoint_id(name) for name in os.listdir(root)):
                return
            previous = _prove_newest_if_unchanged(root, proven, previous)
        pause(INTERVAL)


class _Newest(NamedTuple):
    """The newest checkpoint as it was found: its name, its files, and whether all of it was proven."""

    name: str = ""
    files: Tuple[FileState, ...] = ()
    done: bool = False


def _prove_newest_if_unchanged(root: str, proven: ProvenFiles, previous: _Newest) -> _Newest:
    for candidate in newest.candidates(root):
        if not well_named(candidate.name) or candidate.step > MOST_STEPS:
            continue
        if candidate.name == previous.name and previous.done:
            return previous
        try:
            files = tuple(filter(None, (file_size_and_mtime_or_none(path) for path in candidate.structure().files)))
            now = _Newest(candidate.name, files)
            if now != previous:
                return now
            proving.read_unproven_files_and_weakest_proof(root, candidate, proven, threads=1)
            return now._replace(done=True)
        except OSError:
            raise
        except Exception:  # it is being written; or damaged, which the choice of the next start will say
            continue
    return previous
