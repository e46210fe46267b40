"""Hugging Face's Trainer: `checkpoint-100/` with weights, optimizer, and `trainer_state.json` that says the step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any, Iterator, List

from hyperpod_kit.errors import Untrusted
from hyperpod_kit.job.foreign.candidate import ForeignCandidate, Incomplete, Structure
from hyperpod_kit.untrusted import files, parse

STATE = "trainer_state.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_BESIDE = re.compile(r"(optimizer|scheduler|rng_state\w*)\.(pt|pth|bin)")
_LONGEST = 64 << 20
"""The most bytes of a JSON file: the log of a long run is in trainer_state.json."""

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def detect(root: str) -> Iterator[ForeignCandidate]:
    """Yield the `checkpoint-N` directories of an output directory. Raises OSError."""
    for entry in os.scandir(root):
        match = re.fullmatch(r"checkpoint-(\d+)", entry.name)
        if match and entry.is_dir() and not os.path.exists(os.path.join(entry.path, ".metadata")):
            step = int(match.group(1))
            yield ForeignCandidate(
                "huggingface", entry.name, step, partial(check_step_and_files_present, entry.path, step)
            )


def check_step_and_files_present(directory: str, step: int) -> Structure:
    """Return the structure: the weights, and what the Trainer saves beside them.

    Raises Incomplete when trainer_state.json has another step or a file is missing, OSError.
    """
    state = _json(directory, STATE)
    if state.get("global_step") != step:
        raise Incomplete(f"{STATE} says step {state.get('global_step')}")
    files = _weights(directory)
    if not files:
        raise Incomplete("it has no weights")
    # The optimizer may be left out on purpose (save_only_model); what is there must be whole.
    files += [name for name in sorted(os.listdir(directory)) if _BESIDE.fullmatch(name)]
    for name in files:
        if not os.path.isfile(os.path.join(directory, name)):
            raise Incomplete(f"{name} is missing")
    return Structure(tuple(os.path.join(directory, name) for name in files))


def _weights(directory: str) -> List[str]:
    for index in _INDEXES:
        if os.path.exists(os.path.join(directory, index)):
            named = _json(directory, index).get("weight_map")
            if not isinstance(named, dict) or not named:
                raise Incomplete(f"{index} names no file")
            return sorted({str(name) for name in named.values()})
    return [name for name in _WEIGHTS if os.path.exists(os.path.join(directory, name))]


def _json(directory: str, name: str) -> Any:
    try:
        return parse.parse_json_object(
            files.read_small_regular_file(os.path.join(directory, name), most=_LONGEST), _LONGEST
        )
    except FileNotFoundError:
        raise Incomplete(f"{name} is missing: the save did not end") from None
    except Untrusted as err:
        raise Incomplete(err.message) from err
    except ValueError as err:
        raise Incomplete(f"{name} is torn: {err}") from err
