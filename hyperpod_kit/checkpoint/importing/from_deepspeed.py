"""What plain DeepSpeed's `engine.save_checkpoint` wrote under ZeRO, as a checkpoint of ZeroCheckpoints: the inverse of
the export. The files are mapped, so no more than what is being copied is in memory."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.boxed_state import object_bytes
from hyperpod_kit.checkpoint.formats import torch_files, zero_files
from hyperpod_kit.checkpoint.formats.byte_sources import named, opened
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.errors import Absent, CheckpointError, UsageError
from hyperpod_kit.extras import install_command

_MODEL = "mp_rank_00_model_states.pt"
_OF_RANK = re.compile(r"(bf16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_00_(model|optim)_states\.pt")
_LATEST = "latest"
_MOST = 4096
_WAY_OUT = "load it with DeepSpeed, then ZeroCheckpoints in a new root: docs/how-to/deepspeed.md"
_AGAIN = "save it again with DeepSpeed, or --tag for another one"


class ZeroFolder(NamedTuple):
    """A tag that was checked. `files`: of each rank those that it loads. `unchecked`: how many files have no check
    sums."""

    path: Path
    step: int
    files: tuple[tuple[str, ...], ...]
    bytes: int
    unchecked: int


def checked(folder: Path, tag: str | None = None) -> ZeroFolder:
    """The files of that tag, else of the one that `latest` names: all there, each as it was written, of one step.

    Raises UsageError for what is not such a folder, or is of a kind that cannot be taken over, CheckpointError for
    what is missing, damaged or does not belong together, OSError.
    """
    chosen = tag if tag is not None else _latest(folder)
    path = folder / chosen
    if chosen in ("", ".", "..") or "/" in chosen or not path.is_dir():
        raise CheckpointError(
            f"{folder} has no directory {chosen!r}{'' if tag is not None else f', which {_LATEST} names'}",
            hint=f"--tag with one of these: {', '.join(_tags(folder)) or 'there is none'}",
        )
    files = _by_rank(path)
    names = sorted({name for held in files for name in held})
    unchecked = sum(not torch_files.is_sound(path / name, _AGAIN) for name in names)
    number = _step(path, chosen, files)
    return ZeroFolder(path, number, files, sum((path / name).stat().st_size for name in names), unchecked)


def states(found: ZeroFolder) -> Iterator[StateDict]:
    """The state of each rank, as ZeroCheckpoints has it. Raises UsageError, CheckpointError, OSError."""
    for names in found.files:
        held_in: dict[str, dict[str, torch.Tensor]] = {}
        words = {}
        for name in names:
            held: list[torch.Tensor] = []
            said = zero_files.split(_read(found.path / name), held)
            with torch.serialization.safe_globals(zero_files.known_classes()):
                words[name] = object_bytes(name, said)
            held_in[name] = {str(number): tensor for number, tensor in enumerate(held)}
        values = {"files": held_in, "words": words, "generators": {}, "world": len(found.files)}
        yield StateDict(values, own=zero_files.OWN)


# --- which files ------------------------------------------------------------------------------------------------


def _latest(folder: Path) -> str:
    try:
        with open(opened(folder / _LATEST), "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if not folder.is_dir():
            raise Absent(f"{folder} is no directory", hint="name the save_dir of engine.save_checkpoint") from None
        found = _tags(folder)
        raise UsageError(
            f"{folder} has no file {_LATEST}, which names the checkpoint that counts",
            hint=f"--tag with one of these: {', '.join(found)}" if found else "name what save_checkpoint was given",
        ) from None


def _tags(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(f"*/*{_MODEL}"))[:8] if folder.is_dir() else []


def _by_rank(path: Path) -> tuple[tuple[str, ...], ...]:
    """Of each rank the files that it loads."""
    own: dict[tuple[str, str], dict[int, str]] = {}
    shared = []
    for name in sorted(entry.name for entry in path.iterdir() if entry.name.endswith(".pt")):
        match = _OF_RANK.fullmatch(name)
        if match is not None:
            own.setdefault((match.group(3), match.group(1) or ""), {})[int(match.group(2))] = name
        elif name == _MODEL:
            shared.append(name)
        else:
            raise UsageError(
                f"{path} has {name}, which is of tensor parallelism, of a pipeline or of experts: that is not taken "
                "over",
                hint=_WAY_OUT,
            )
    if len({half for kind, half in own if kind == "optim"}) > 1 or (shared and any(kind == "model" for kind, _ in own)):
        raise CheckpointError(f"{path} holds files of two saves: {_some([*shared, *_names(own)])}", hint=_AGAIN)
    optimizers = next((held for (kind, _), held in own.items() if kind == "optim"), {})
    models = next((held for (kind, _), held in own.items() if kind == "model"), {})
    if not optimizers and (shared or models):
        raise UsageError(
            f"{path} has no zero_pp_rank_*_optim_states.pt: it is of DeepSpeed without ZeRO, or without its optimizer",
            hint="torch.load the model's file, and Manager(root) with State: docs/checkpoints.md",
        )
    if not optimizers:
        raise UsageError(f"{path} has no files of DeepSpeed's ZeRO", hint="name the save_dir of save_checkpoint")
    world = max([*optimizers, *models]) + 1
    missing = [f"optim_states of rank {rank}" for rank in range(world) if rank not in optimizers]
    if not shared:
        missing += [f"model_states of rank {rank}" for rank in range(world) if rank not in models]
    if missing:
        raise CheckpointError(f"{path} is not whole, it lacks {_some(missing)}", hint=_AGAIN)
    return tuple((*shared, *([models[rank]] if models else []), optimizers[rank]) for rank in range(world))


def _names(own: dict[tuple[str, str], dict[int, str]]) -> list[str]:
    return [held[min(held)] for held in own.values()]


def _some(words: list[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


# --- what is in them --------------------------------------------------------------------------------------------


def _read(path: Path) -> Any:
    try:
        classes = torch.serialization.safe_globals(zero_files.known_classes())
        with torch_files.damage_said(path, _AGAIN), named(path) as there, classes:
            return torch.load(there, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{path} holds values of classes that are not taken over: {torch_files.refused(err)}",
            hint=f"where they are DeepSpeed's: {install_command('torch', 'deepspeed')}; else save a client_state of "
            "plain values",
        ) from None


def _step(path: Path, tag: str, files: tuple[tuple[str, ...], ...]) -> int:
    """That of all files, as ZeroCheckpoints would name it. Raises CheckpointError."""
    counted: dict[str, tuple[int, int]] = {}
    moved: dict[str, list[float]] = {}
    for names in files:
        for name in names:
            if name in counted or name in moved:
                continue
            said = _read(path / name)
            if not isinstance(said, dict):
                raise CheckpointError(f"{path / name} holds no dict, so it is not DeepSpeed's", hint=_AGAIN)
            if name.endswith("_optim_states.pt"):
                moved[name] = [*_steps(_asked(path / name, said, "optimizer_state_dict", dict))]
                continue
            done, skipped = (_asked(path / name, said, key, int) for key in ("global_steps", "skipped_steps"))
            counted[name] = (done, skipped)
            ranks = _asked(path / name, said, "dp_world_size", int)
            if ranks != len(files) or said.get("mp_world_size", 1) != 1:
                raise CheckpointError(
                    f"{path} has optimizer files of {len(files)} ranks, and {name} says that {ranks} data-parallel "
                    f"ranks of {said.get('mp_world_size', 1)} saved it",
                    hint=_AGAIN,
                )
    first = next(iter(counted))
    _alike(path, {name: json.dumps(count) for name, count in counted.items()}, "global_steps, skipped_steps")
    _alike(path, {name: json.dumps(steps) for name, steps in moved.items()}, "steps of the optimizer")
    done, skipped = counted[first]
    taken = max((step for steps in moved.values() for step in steps), default=done - skipped)
    if taken != done - skipped:
        raise CheckpointError(
            f"{path} holds files of different steps: {first} is of step {done}, {skipped} of them skipped, and the "
            f"optimizers have made {taken:g}",
            hint=f"where that is meant: {_WAY_OUT}",
        )
    numbers = re.findall(r"\d+", tag)
    return int(numbers[-1]) if numbers else done


def _asked(path: Path, said: dict[Any, Any], key: str, kind: type) -> Any:
    if type(said.get(key)) is not kind:
        raise CheckpointError(
            f"{path} says {key} is {str(said.get(key))[:80]!r}, expected {kind.__name__}: it is not DeepSpeed's",
            hint=_AGAIN,
        )
    return said[key]


def _alike(path: Path, said: dict[str, str], what: str) -> None:
    first = next(iter(said))
    other = next((name for name in said if said[name] != said[first]), None)
    if other is not None:
        raise CheckpointError(
            f"{path} holds files of different steps: {what} {said[first][:80]} in {first}, {said[other][:80]} in "
            f"{other}",
            hint=_AGAIN,
        )


def _steps(said: Any, key: object = None) -> Iterator[float]:
    """What an optimizer has counted for each of its tensors."""
    if key == "step" and isinstance(said, (int, float, torch.Tensor)) and not isinstance(said, bool):
        if not isinstance(said, torch.Tensor) or said.numel() == 1:
            yield float(said)
    elif isinstance(said, dict):
        for name, item in said.items():
            if name != "param_groups":  # what some optimizers count there is not steps of training
                yield from _steps(item, name)
    elif isinstance(said, (list, tuple)):
        for item in said:
            yield from _steps(item)
