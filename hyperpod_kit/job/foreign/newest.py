"""Finds the newest checkpoint of another framework that is whole, as far as its format can prove it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Callable, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.job.foreign import dcp, proving
from hyperpod_kit.job.foreign.candidate import MOST_STEPS, Detector, ForeignCandidate, well_named
from hyperpod_kit.job.foreign.frameworks import deepspeed, huggingface, lightning, megatron
from hyperpod_kit.untrusted.text import clean_one_line

DETECTORS: Tuple[Detector, ...] = (dcp.detect, megatron.detect, deepspeed.detect, huggingface.detect, lightning.detect)


class ForeignCheckpoint(NamedTuple):
    """As `repository.selection.Selection`, with the framework and how far validity was proven.

    Its order is (0, step): these frameworks number nothing but steps.
    """

    attempt: str
    step: int
    kind: str
    proof: str
    rejected: Tuple[Tuple[str, str], ...]
    epoch: int = 0

    @property
    def seq(self) -> int:
        """The step: these frameworks have no sequence numbers."""
        return self.step


def candidates(root: str) -> List[ForeignCandidate]:
    """Return the checkpoints of all other frameworks, newest step first. Raises OSError."""
    if not os.path.isdir(root):  # so for a root in S3, too: only what another framework wrote to files is found
        return []
    detected_candidates = [candidate for detect in DETECTORS for candidate in detect(root)]
    return sorted(detected_candidates, key=lambda candidate: (-candidate.step, candidate.name))


Prove = Callable[[ForeignCandidate], str]
"""prove(candidate) -> how far it is proven, of candidate.PROOFS. Raises CheckpointError, OSError."""


def newest_provable_foreign_checkpoint(
    root: str, passed_over: Mapping[str, str], prove: Optional[Prove] = None
) -> Optional[ForeignCheckpoint]:
    """Return the newest checkpoint of another framework that is whole, None when there is no checkpoint at all.

    `passed_over` (name -> why): checkpoints that are taken only when no other is whole. `prove`: returns how far a
    candidate is proven; by default it is read here. Raises NoValidCheckpoint when there are checkpoints and none is
    whole. An OSError is raised and never taken for damage: a file system that does not answer must not lead to an older
    checkpoint.
    """
    prove = prove or partial(proving.read_unproven_files_and_weakest_proof, root)
    rejected: List[Tuple[str, str]] = []
    later: List[ForeignCandidate] = []
    for candidate in candidates(root):
        if not well_named(candidate.name) or candidate.step > MOST_STEPS:
            # The quoted form is never the name of a file that we would act upon.
            rejected.append(
                (
                    clean_one_line(ascii(candidate.name)),
                    "the name cannot be passed to a job: expected letters, digits and . _ - = + @ , :",
                )
            )
            continue
        if candidate.name in passed_over:
            rejected.append((candidate.name, passed_over[candidate.name]))
            later.append(candidate)
            continue
        checkpoint = _checkpoint_or_append_rejection(prove, candidate, rejected)
        if checkpoint is not None:
            return checkpoint
    for candidate in later:
        checkpoint = _checkpoint_or_append_rejection(
            prove, candidate, [pair for pair in rejected if pair[0] != candidate.name]
        )
        if checkpoint is not None:
            return checkpoint
    if rejected:
        raise NoValidCheckpoint(root, rejected)
    return None


def _checkpoint_or_append_rejection(
    prove: Prove, candidate: ForeignCandidate, rejected: List[Tuple[str, str]]
) -> Optional[ForeignCheckpoint]:
    """Return the checkpoint if it can be proven; otherwise append why not to `rejected`. Raises OSError."""
    try:
        proof = prove(candidate)
    except (CheckpointError, FileNotFoundError) as err:
        rejected.append((candidate.name, str(err)))
        return None
    except OSError:
        raise
    except Exception as err:  # an unforeseen kind of damage must not hide an older checkpoint that is whole
        rejected.append((candidate.name, f"cannot be judged: {type(err).__name__}: {clean_one_line(err)}"))
        return None
    return ForeignCheckpoint(candidate.name, candidate.step, candidate.kind, proof, tuple(rejected))
