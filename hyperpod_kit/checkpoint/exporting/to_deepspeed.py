"""A checkpoint of ZeroCheckpoints as the files that DeepSpeed's own engine writes and loads, one after the other: no
more than one file of one rank is held, in pages of a file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import codec, gathered_tensors
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.atomic_output import directory_after_rename
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.exporting import preview
from hyperpod_kit.checkpoint.formats import torch_files, zero_files
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress
from hyperpod_kit.checkpoint.gathered_tensors import TensorAllocator
from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.sharded_state import torch_load_with_length
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.extras import requirements_install_command
from hyperpod_kit.untrusted import by_descriptor


class WrittenFiles(NamedTuple):
    """`step` names the directory: `global_step<step>`. `bytes` were read and proved."""

    checkpoint_id: str
    step: int
    tensors: int
    bytes: int


def write(store: Store, checkpoint_id: str, path: Path, allocate: TensorAllocator, progress: Progress) -> WrittenFiles:
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
            preview.require_format_source("deepspeed", checkpoint_id, tree)
            # Of a file that the ranks have alike the first one's: nothing of it is a rank's own.
            for name in sorted(tree["words"].keys() - done):
                encoded, tensor_tree = tree["words"][name], tree["files"].get(name, {})
                tensor_names = {*codec.tensor_names(encoded), *codec.tensor_names(tensor_tree)}
                tensors = gathered_tensors.read_full_tensors_alone(checkpoint, rows, tensor_names, allocate, counted)
                skeleton = _unpickle_skeleton_of_file(checkpoint_id, codec.decode(encoded, tensors.__getitem__))
                contents = zero_files.insert_tensors(skeleton, codec.decode(tensor_tree, tensors.__getitem__))
                _torch_save_file(contents, folder / os.path.basename(name))
                done.add(name)
                count += len(tensors)
                size += sum(tensor.nbytes for tensor in tensors.values())
    _write_text(path / "latest", folder.name)
    return WrittenFiles(checkpoint_id, body.step, count, size)


def _unpickle_skeleton_of_file(checkpoint_id: str, encoded: torch.Tensor) -> Any:
    """What a file says, numbers in the places of tensors. Raises UsageError where that takes DeepSpeed, and it is not
    there."""
    try:
        with torch.serialization.safe_globals(zero_files.deepspeed_classes_if_installed()):
            return torch_load_with_length(bytes(encoded.numpy()))
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{checkpoint_id} holds values of classes that are not known here: {torch_files.refused_class(err)}",
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
