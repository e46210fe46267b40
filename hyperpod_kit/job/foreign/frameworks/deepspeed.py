"""DeepSpeed: `global_step100/` with a file of each model-parallel and data-parallel rank; `latest` names the newest.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Dict, Iterator, Optional, Set

from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete, Structure

_MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_(\d+)(?:_\w+)?_model_states\.pt$")
_ZERO = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")


def detect(root: str) -> Iterator[ForeignCandidate]:
    """Yield the `global_stepN` directories; a tag with another name has no step that could be compared.

    Raises OSError.
    """
    for entry in os.scandir(root):
        match = re.fullmatch(r"global_step(\d+)", entry.name)
        if match and entry.is_dir():
            yield ForeignCandidate(
                "deepspeed", entry.name, int(match.group(1)), partial(check_all_rank_files_present, entry.path)
            )


def check_all_rank_files_present(directory: str) -> Structure:
    """Return the structure, with all `.pt` files. Raises Incomplete unless every rank's file is there, and OSError."""
    names = sorted(os.listdir(directory))
    models = {int(match.group(1)) for match in map(_MODEL.match, names) if match}
    if not models:
        raise Incomplete("it has no mp_rank_*_model_states.pt")
    without = _first_lacking(models, max(models) + 1)
    if without is not None:
        raise Incomplete(f"the model states of model-parallel rank {without} are missing")
    zero: Dict[int, Set[int]] = {}
    for match in filter(None, map(_ZERO.match, names)):
        zero.setdefault(int(match.group(2)), set()).add(int(match.group(1)))
    if zero:
        _raise_unless_all_optimizer_states_present(models, zero)
    return Structure(tuple(os.path.join(directory, name) for name in names if name.endswith(".pt")))


def _raise_unless_all_optimizer_states_present(models: Set[int], zero: Dict[int, Set[int]]) -> None:
    """Raise Incomplete unless the states of every data-parallel rank are there, for each model-parallel rank.

    `models`: the model-parallel ranks; `zero`: model-parallel rank -> data-parallel ranks.
    """
    data_parallel_size = max(max(ranks) for ranks in zero.values()) + 1
    for model_rank in sorted(models):
        lacking = _first_lacking(zero.get(model_rank, set()), data_parallel_size)
        if lacking is not None:
            raise Incomplete(f"the optimizer states of data-parallel rank {lacking} are missing")


def _first_lacking(ranks: Set[int], world: int) -> Optional[int]:
    """Return the first rank below `world` that is not there, None when all are."""
    # A name may hold any number, so `world` may be huge; then one of the first numbers is missing.
    for rank in range(min(world, len(ranks) + 1)):
        if rank not in ranks:
            return rank
    return None
