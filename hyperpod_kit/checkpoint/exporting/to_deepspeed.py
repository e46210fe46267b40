"""A checkpoint of ZeroCheckpoints as the files that DeepSpeed's own engine writes and loads, one after the other: no
more than one file of one rank is held, in pages of a file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import codec, whole_tensors
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.appearing import destination
from hyperpod_kit.checkpoint.boxed_state import object_of
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.exporting import preview
from hyperpod_kit.checkpoint.formats import torch_files, zero_files
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress
from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.whole_tensors import Room
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.extras import install_command
from hyperpod_kit.untrusted import by_descriptor


class WrittenFiles(NamedTuple):
    """`step` names the directory: `global_step<step>`. `bytes` were read and proved."""

    attempt: str
    step: int
    tensors: int
    bytes: int


def write(store: Store, attempt: str, path: Path, room: Room, progress: Progress) -> WrittenFiles:
    """Make the directory `path`: `latest`, and the files of all ranks in `global_step<step>`.

    What is at `path` goes first: a checkpoint that turned out damaged when a part of it was written. Raises UsageError
    for a checkpoint of another adapter, HyperpodKitError for what cannot be written, and for what cannot be read
    StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    body = verify.read_manifest(store, attempt)
    extra = verify.read_extra(store, attempt, body.extra)
    folder = path / f"global_step{body.step}"
    _made(path, folder)
    done: set[str] = set()
    count = size = 0
    told = CountedBytes(body.total_bytes, progress)
    with reshard.opened(store, attempt, body) as opened:
        rows = opened.rows()
        for rank in range(body.world):
            tree = extra_state.read(store, attempt, extra, rank)
            preview.refuse_of_others("deepspeed", attempt, tree)
            # Of a file that the ranks have alike the first one's: nothing of it is a rank's own.
            for name in sorted(tree["words"].keys() - done):
                words, held = tree["words"][name], tree["files"].get(name, {})
                wanted = {*codec.tensor_names(words), *codec.tensor_names(held)}
                tensors = whole_tensors.read(opened, rows, wanted, room, told)
                said = _said(attempt, codec.decode(words, tensors.__getitem__))
                found = zero_files.joined(said, codec.decode(held, tensors.__getitem__))
                _save(found, folder / os.path.basename(name))
                done.add(name)
                count += len(tensors)
                size += sum(tensor.nbytes for tensor in tensors.values())
    _written(path / "latest", folder.name)
    return WrittenFiles(attempt, body.step, count, size)


def _said(attempt: str, words: torch.Tensor) -> Any:
    """What a file says, numbers in the places of tensors. Raises UsageError where that takes DeepSpeed, and it is not
    there."""
    try:
        with torch.serialization.safe_globals(zero_files.known_classes()):
            return object_of(bytes(words.numpy()))
    except pickle.UnpicklingError as err:
        raise UsageError(
            f"{attempt} holds values of classes that are not known here: {torch_files.refused(err)}",
            hint=install_command("torch", "deepspeed"),
        ) from None


# --- writing: what fails here says nothing of the checkpoint, so no older one is taken for it --------------------


def _made(path: Path, folder: Path) -> None:
    try:
        if path.is_dir():
            by_descriptor.remove_tree(path)
        by_descriptor.make_directory(path)
        by_descriptor.make_directory(folder)
    except OSError as err:
        raise HyperpodKitError(f"cannot make {destination(path) / path.name}: {err.strerror}") from err


def _save(said: Any, path: Path) -> None:
    try:
        with by_descriptor.stream(path, "wb") as out:
            torch.save(said, out)
    except (OSError, RuntimeError) as err:  # torch says a full disk with either
        place = destination(path.parents[1])
        raise HyperpodKitError(f"cannot write {path.name} in {place}: {err}") from err


def _written(path: Path, text: str) -> None:
    try:
        by_descriptor.write_text(path, text)
    except OSError as err:
        raise HyperpodKitError(f"cannot write {path.name} in {destination(path.parent)}: {err.strerror}") from err
