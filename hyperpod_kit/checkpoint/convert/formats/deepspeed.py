"""A directory of DeepSpeed's `engine.save_checkpoint` under ZeRO, read as a checkpoint of ZeroCheckpoints and written
from one. The files are mapped, so no more than what is being copied is in memory."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.atomic_output import directory_after_rename
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files import new_root, scratch_files, torch_files
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles, descriptor_path, open_regular_file
from hyperpod_kit.checkpoint.convert.files.foreign_format import (
    ExportSource,
    ForeignFormat,
    ImportSource,
    WrittenExport,
)
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.restore import gathered_tensors
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.checkpoint.state.sharded_state import torch_load_with_length, torch_save_with_length_and_padding
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.errors import Absent, CheckpointError, HyperpodKitError, UsageError
from hyperpod_kit.extras import requirements_install_command
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

_MODEL = "mp_rank_00_model_states.pt"
_OF_RANK = re.compile(r"(bf16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_00_(model|optim)_states\.pt")
_LATEST = "latest"
_LATEST_LIMIT = 4096
_ALTERNATIVE_HINT = "load it with DeepSpeed, then save it with ZeroCheckpoints in a new root"
_SAVE_HINT = "save it again with DeepSpeed, or --tag for another one"


class ZeroFolder(NamedTuple):
    """A tag that was checked. `files`: of each rank those that it loads. `unchecked`: how many files have no check
    sums."""

    path: Path
    step: int
    files: tuple[tuple[str, ...], ...]
    bytes: int
    unchecked: int


def inspect_tag(folder: Path, tag: str | None = None) -> ZeroFolder:
    """Return the files of that tag, else of the one that `latest` names: all there, each as it was written, of
    one step.

    Raise UsageError for what is not such a folder, or is of a kind that cannot be taken over, CheckpointError
    for what is missing, damaged or does not belong together, OSError.
    """
    if tag is None:
        chosen, origin = _read_tag_in_latest_file(folder), f", which {_LATEST} names"
    else:
        chosen, origin = tag, ""
    path = folder / chosen
    if chosen in ("", ".", "..") or "/" in chosen or not path.is_dir():
        raise CheckpointError(
            f"{folder} has no directory {chosen!r}{origin}",
            hint=f"give --tag with one of: {', '.join(_first_tags_for_hint(folder)) or 'there is none'}",
        )
    files = _files_by_rank(path)
    names = sorted({name for rank_files in files for name in rank_files})
    unchecked = sum(not torch_files.verify_checksums_if_present(path / name, _SAVE_HINT) for name in names)
    step = _consistent_step(path, chosen, files)
    return ZeroFolder(path, step, files, sum((path / name).stat().st_size for name in names), unchecked)


def rank_states(folder: ZeroFolder) -> Iterator[StateDict]:
    """The state of each rank, as ZeroCheckpoints has it. Raises UsageError, CheckpointError, OSError."""
    for names in folder.files:
        tensors_of: dict[str, dict[str, torch.Tensor]] = {}
        encoded = {}
        for name in names:
            tensors: list[torch.Tensor] = []
            skeleton = extract_tensors(_load_torch_file(folder.path / name), tensors)
            with torch.serialization.safe_globals(deepspeed_classes_if_installed()):
                encoded[name] = torch_save_with_length_and_padding(name, skeleton)
            tensors_of[name] = {str(number): tensor for number, tensor in enumerate(tensors)}
        values = {"files": tensors_of, "words": encoded, "generators": {}, "world": len(folder.files)}
        yield StateDict(values, own=PER_RANK_PATTERNS)


# --- which files ------------------------------------------------------------------------------------------------


def _read_tag_in_latest_file(folder: Path) -> str:
    try:
        with open(open_regular_file(folder / _LATEST), "rb") as file:
            return file.read(_LATEST_LIMIT).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if not folder.is_dir():
            raise Absent(f"{folder} is not a directory", hint="give the save_dir of engine.save_checkpoint") from None
        tags = _first_tags_for_hint(folder)
        hint = "give the directory that was passed to save_checkpoint"
        if tags:
            hint = f"give --tag with one of: {', '.join(tags)}"
        raise UsageError(f"{folder} has no file {_LATEST}, which names the current checkpoint", hint=hint) from None


def _first_tags_for_hint(folder: Path) -> list[str]:
    if folder.is_dir():
        return sorted(path.parent.name for path in folder.glob(f"*/*{_MODEL}"))[:8]
    return []


def _files_by_rank(path: Path) -> tuple[tuple[str, ...], ...]:
    """Return, for each rank, the files that it loads. Raise UsageError, CheckpointError."""
    per_rank: dict[tuple[str, str], dict[int, str]] = {}
    shared = []
    for name in sorted(entry.name for entry in path.iterdir() if entry.name.endswith(".pt")):
        match = _OF_RANK.fullmatch(name)
        if match is not None:
            per_rank.setdefault((match.group(3), match.group(1) or ""), {})[int(match.group(2))] = name
        elif name == _MODEL:
            shared.append(name)
        else:
            raise UsageError(
                f"{path} has {name}, which is of tensor, pipeline or expert parallelism: such checkpoints cannot be "
                "imported",
                hint=_ALTERNATIVE_HINT,
            )
    if len({half for kind, half in per_rank if kind == "optim"}) > 1 or (
        shared and any(kind == "model" for kind, _ in per_rank)
    ):
        raise CheckpointError(
            f"{path} holds files of two saves: {_shortened([*shared, *_first_file_of_each_kind(per_rank)])}",
            hint=_SAVE_HINT,
        )
    optimizers = next((rank_files for (kind, _), rank_files in per_rank.items() if kind == "optim"), {})
    models = next((rank_files for (kind, _), rank_files in per_rank.items() if kind == "model"), {})
    if not optimizers and (shared or models):
        raise UsageError(
            f"{path} has no zero_pp_rank_*_optim_states.pt: it was saved by DeepSpeed without ZeRO, or without its "
            "optimizer",
            hint="load the model's file with torch.load, then save it with Manager(root) and State",
        )
    if not optimizers:
        raise UsageError(f"{path} has no files of DeepSpeed ZeRO", hint="give the save_dir of save_checkpoint")
    world = max([*optimizers, *models]) + 1
    missing = [f"optim_states of rank {rank}" for rank in range(world) if rank not in optimizers]
    if not shared:
        missing += [f"model_states of rank {rank}" for rank in range(world) if rank not in models]
    if missing:
        raise CheckpointError(f"{path} is incomplete: it lacks {_shortened(missing)}", hint=_SAVE_HINT)
    if models:
        return tuple((*shared, models[rank], optimizers[rank]) for rank in range(world))
    return tuple((*shared, optimizers[rank]) for rank in range(world))


def _first_file_of_each_kind(per_rank: dict[tuple[str, str], dict[int, str]]) -> list[str]:
    return [rank_files[min(rank_files)] for rank_files in per_rank.values()]


def _shortened(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    if len(names) > 4:
        return f"{shown} and {len(names) - 4} more"
    return shown


# --- what is in them --------------------------------------------------------------------------------------------


def _load_torch_file(path: Path) -> Any:
    try:
        classes = torch.serialization.safe_globals(deepspeed_classes_if_installed())
        with torch_files.damage_as_checkpoint_error(path, _SAVE_HINT), descriptor_path(path) as open_path, classes:
            return torch.load(open_path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{path} holds values of classes that cannot be imported: {torch_files.refused_class(err)}",
            hint=f"if they are DeepSpeed's: {requirements_install_command('torch', 'deepspeed')}; else save a "
            "client_state of plain values",
        ) from None


def _consistent_step(path: Path, tag: str, files: tuple[tuple[str, ...], ...]) -> int:
    """Return the step of all files, as ZeroCheckpoints would name it. Raise CheckpointError unless they are of
    one step."""
    step_counts: dict[str, tuple[int, int]] = {}
    optimizer_steps: dict[str, list[float]] = {}
    for names in files:
        for name in names:
            if name in step_counts or name in optimizer_steps:
                continue
            contents = _load_torch_file(path / name)
            if not isinstance(contents, dict):
                raise CheckpointError(f"{path / name} holds no dict, so it is not DeepSpeed's", hint=_SAVE_HINT)
            if name.endswith("_optim_states.pt"):
                optimizer_steps[name] = [
                    *_optimizer_steps(_require_entry(path / name, contents, "optimizer_state_dict", dict))
                ]
                continue
            done, skipped = (
                _require_entry(path / name, contents, key, int) for key in ("global_steps", "skipped_steps")
            )
            step_counts[name] = (done, skipped)
            ranks = _require_entry(path / name, contents, "dp_world_size", int)
            if ranks != len(files) or contents.get("mp_world_size", 1) != 1:
                raise CheckpointError(
                    f"{path} has optimizer files of {counted(len(files), 'rank')}, and {name} says that "
                    f"{counted(ranks, 'data-parallel rank')} of {contents.get('mp_world_size', 1)} saved it",
                    hint=_SAVE_HINT,
                )
    first = next(iter(step_counts))
    _require_same(path, {name: json.dumps(count) for name, count in step_counts.items()}, "global_steps, skipped_steps")
    _require_same(path, {name: json.dumps(steps) for name, steps in optimizer_steps.items()}, "steps of the optimizer")
    done, skipped = step_counts[first]
    taken = max((step for steps in optimizer_steps.values() for step in steps), default=done - skipped)
    if taken != done - skipped:
        raise CheckpointError(
            f"{path} holds files of different steps: {first} is of step {done}, {skipped} of them skipped, and the "
            f"optimizers have made {taken:g}",
            hint=f"if that is intended: {_ALTERNATIVE_HINT}",
        )
    numbers = re.findall(r"\d+", tag)
    if numbers:
        return int(numbers[-1])
    return done


def _require_entry(path: Path, contents: dict[Any, Any], key: str, kind: type) -> Any:
    if type(contents.get(key)) is not kind:
        raise CheckpointError(
            f"{path} says {key} is {str(contents.get(key))[:80]!r}, expected {kind.__name__}: it is not DeepSpeed's",
            hint=_SAVE_HINT,
        )
    return contents[key]


def _require_same(path: Path, values: dict[str, str], what: str) -> None:
    first = next(iter(values))
    other = next((name for name in values if values[name] != values[first]), None)
    if other is not None:
        raise CheckpointError(
            f"{path} holds files of different steps: {what} {values[first][:80]} in {first}, {values[other][:80]} in "
            f"{other}",
            hint=_SAVE_HINT,
        )


def _optimizer_steps(value: Any, key: object = None) -> Iterator[float]:
    """Yield the step counts that an optimizer holds for its tensors."""
    if key == "step" and isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool):
        if not isinstance(value, torch.Tensor) or value.numel() == 1:
            yield float(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name != "param_groups":  # what some optimizers count there is not steps of training
                yield from _optimizer_steps(item, name)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _optimizer_steps(item)


# The files of a DeepSpeed checkpoint as tensors and words: everything that a file says, a number in the place of each
# tensor. What the adapter saves so, the export puts together again.

PARTITION = "zero_pp_rank_"
"""In the name of a file that is one rank's alone."""
PER_RANK_PATTERNS = ("words", "generators", f"files.*{PARTITION}*")
"""What of the state each rank has for itself, as StateDict names it."""
_TENSOR_KEY = "hyperpod_kit.tensor"
"""Key of what stands in the place of a tensor: its number."""


def deepspeed_classes() -> list[Any]:
    """Return the classes of DeepSpeed that its files hold. Raise ImportError."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def deepspeed_classes_if_installed() -> list[Any]:
    """Return those of `deepspeed_classes`, none where DeepSpeed is not installed."""
    with contextlib.suppress(ImportError):
        return deepspeed_classes()
    return []


def extract_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with `{_TENSOR_KEY: number}` in the place of each tensor, which is appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {_TENSOR_KEY: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: extract_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(extract_tensors(item, tensors) for item in value)
    return value


def insert_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `extract_tensors`; `tensors`: number, as text -> tensor. Raises CheckpointError for a tensor that is not
    there."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR_KEY}:
            if str(value[_TENSOR_KEY]) not in tensors:
                raise CheckpointError("the tensors of the checkpoint differ from those of DeepSpeed's engine")
            return tensors[str(value[_TENSOR_KEY])]
        return {key: insert_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(insert_tensors(item, tensors) for item in value)
    return value


# A checkpoint of ZeroCheckpoints as the files that DeepSpeed's own engine writes and loads, one after the other: no
# more than one file of one rank is held, in pages of a file.


def write(store: Store, checkpoint_id: str, path: Path, allocate: TensorAllocator, progress: Progress) -> WrittenExport:
    """Make the directory `path`: `latest`, and the files of all ranks in `global_step<step>`.

    What is at `path` goes first: a checkpoint that turned out damaged when a part of it was written. Raises UsageError
    for a checkpoint of another adapter, HyperpodKitError for what cannot be written, and for what cannot be read
    StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    body = verify.read_manifest(store, checkpoint_id)
    extra = verify.read_verified_small_file(store, checkpoint_id, body.extra)
    folder = path / f"global_step{body.step}"
    _recreate_directories(path, folder)
    done: set[str] = set()
    count = size = 0
    counted = CountedBytes(body.total_bytes, progress)
    with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
        rows = checkpoint.read_piece_rows()
        for rank in range(body.world):
            tree = extra_state.read(store, checkpoint_id, extra, rank)
            FORMAT.require_exportable(checkpoint_id, tree)
            # Of a file that the ranks have alike the first one's: nothing of it is a rank's own.
            for name in sorted(tree["words"].keys() - done):
                encoded, tensor_tree = tree["words"][name], tree["files"].get(name, {})
                tensor_names = {*codec.tensor_names(encoded), *codec.tensor_names(tensor_tree)}
                tensors = gathered_tensors.read_full_tensors_alone(checkpoint, rows, tensor_names, allocate, counted)
                skeleton = _unpickle_skeleton_of_file(checkpoint_id, codec.decode(encoded, tensors.__getitem__))
                contents = insert_tensors(skeleton, codec.decode(tensor_tree, tensors.__getitem__))
                _torch_save_file(contents, folder / os.path.basename(name))
                done.add(name)
                count += len(tensors)
                size += sum(tensor.nbytes for tensor in tensors.values())
    _write_text(path / _LATEST, folder.name)
    return WrittenExport(checkpoint_id, body.step, count, size)


def _unpickle_skeleton_of_file(checkpoint_id: str, encoded: torch.Tensor) -> Any:
    """What a file says, numbers in the places of tensors. Raises UsageError where that takes DeepSpeed, and it is not
    there."""
    try:
        with torch.serialization.safe_globals(deepspeed_classes_if_installed()):
            return torch_load_with_length(bytes(encoded.numpy()))
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{checkpoint_id} holds values of unknown classes: {torch_files.refused_class(err)}",
            hint=requirements_install_command("torch", "deepspeed"),
        ) from None


# --- writing: what fails here says nothing of the checkpoint, so no older one is taken for it --------------------


def _recreate_directories(path: Path, folder: Path) -> None:
    try:
        if path.is_dir():
            by_descriptor.remove_tree(path)
        by_descriptor.make_directory(path)
        by_descriptor.make_directory(folder)
    except OSError as err:
        raise HyperpodKitError(f"cannot make {directory_after_rename(path) / path.name}: {err.strerror}") from err


def _torch_save_file(contents: Any, path: Path) -> None:
    try:
        with by_descriptor.open_stream_for_writing(path, "wb") as out:
            torch.save(contents, out)
    except (OSError, RuntimeError) as err:  # torch says a full disk with either
        directory = directory_after_rename(path.parents[1])
        raise HyperpodKitError(f"cannot write {path.name} in {directory}: {err}") from err


def _write_text(path: Path, text: str) -> None:
    try:
        by_descriptor.write_text(path, text)
    except OSError as err:
        raise HyperpodKitError(
            f"cannot write {path.name} in {directory_after_rename(path.parent)}: {err.strerror}"
        ) from err


class DeepSpeedFormat(ForeignFormat):
    """See the module."""

    can_import = True
    can_export = True
    has_tags = True

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        folder = inspect_tag(path, tag)
        ranks = len(folder.files)
        parts = new_root.parts_of_states(rank_states(folder), ranks)
        return ImportSource(folder.step, ranks, parts, folder.bytes, folder.unchecked, folder.path)

    def read_tree(self, store: Store, checkpoint_id: str, extra: bytes) -> Mapping[str, Any]:
        return extra_state.read(store, checkpoint_id, extra, 0)

    def require_exportable(self, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
        if not {"words", "files"} <= tree.keys():
            raise UsageError(f"{checkpoint_id} was not written by the DeepSpeed adapter", hint="--to torch or --to dcp")

    def exported_names(self, tree: Mapping[str, Any], stored_names: set[str]) -> set[str]:
        return stored_names

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        with scratch_files.scratch_allocator(path) as allocate:
            return source.read(lambda name: write(source.store, name, path, allocate, source.progress))


FORMAT = DeepSpeedFormat()
