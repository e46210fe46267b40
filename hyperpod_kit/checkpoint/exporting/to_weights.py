"""A model's tensors as safetensors, alone or in a directory that `from_pretrained` reads: read from the checkpoint
straight into the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint import codec, whole_tensors
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.appearing import destination
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.exporting import rooms
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress, unsaid
from hyperpod_kit.checkpoint.formats.safetensors_files import PRETRAINED, WEIGHTS
from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.tensors import own_name
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.untrusted import by_descriptor

LAYOUT = "huggingface"
"""Key of `extra` under which an adapter keeps what `from_pretrained` reads beside tensors: {"files": {name: text},
"names": our name of an adapter's tensor -> PEFT's}."""
_OWN_MODEL = own_name(0, "model.")


class WrittenWeights(NamedTuple):
    """`bytes` are those of the tensors, which were read and proved; `own` of them are each rank's own."""

    attempt: str
    step: int
    tensors: int
    bytes: int
    own: int


def write(store: Store, attempt: str, to: str, path: Path, progress: Progress = unsaid) -> WrittenWeights:
    """Make the file `path`, or for `huggingface` the directory. A tied tensor stands under its first name; without a
    model all tensors that are not another rank's own are taken.

    What is at `path` goes first: a checkpoint that turned out damaged when a part of it was written. Raises UsageError
    for one that does not say how its model is made, HyperpodKitError for what cannot be written, and for what cannot be
    read StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    body = verify.read_manifest(store, attempt)
    tree = extra_state.merge_trees(verify.read_extra(store, attempt, body.extra))
    with reshard.opened(store, attempt, body) as opened:
        rows = opened.rows()
        held = set(codec.tensor_names(tree)) or set(rows)
        names = model_names(held) or {name: name for name in held}
        file = path
        if to == "huggingface":
            said = layout_of(attempt, tree)
            own = said.get("names") or {}
            file = path / ("adapter_model.safetensors" if own else WEIGHTS)
            ours = {short: name for name, short in names.items()}
            names = {ours[short]: theirs for short, theirs in own.items()} if own else names
            _made(path, said["files"])
        told = CountedBytes(body.total_bytes, progress)
        tensors = whole_tensors.read(opened, rows, names, rooms.safetensors_file(file, names), told)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return WrittenWeights(attempt, body.step, len(tensors), size, own_ones(tensors))


def own_ones(names: Iterable[str]) -> int:
    """How many of the model's tensors are each rank's own, so that rank 0's stand for all."""
    return sum(name.startswith(_OWN_MODEL) for name in names)


def model_names(held: set[str]) -> dict[str, str]:
    """Of the model's tensors: our name -> that in the model."""
    return {name: name[len(prefix) :] for name in held for prefix in ("model.", _OWN_MODEL) if name.startswith(prefix)}


def layout_of(attempt: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """As LAYOUT has it. Raises UsageError where the checkpoint does not say it."""
    extra: Any = codec.decode(tree.get("extra", {}), lambda _: None, plain=True)  # type: ignore[arg-type, return-value]
    if LAYOUT in extra:
        return dict(extra[LAYOUT])
    if PRETRAINED in extra:
        return {"files": extra[PRETRAINED]}
    raise UsageError(
        f"{attempt} does not say how its model is made: it is not of the Hugging Face Trainer",
        hint="--to safetensors; AutoModel.from_config(...).load_state_dict(...)",
    )


def _made(path: Path, files: Mapping[str, str]) -> None:
    """The directory and its texts. Raises HyperpodKitError."""
    try:
        if path.is_dir():
            by_descriptor.remove_tree(path)
        by_descriptor.make_directory(path)
        for name, text in files.items():
            by_descriptor.write_text(path / os.path.basename(name), text)
    except OSError as err:
        raise HyperpodKitError(f"cannot write {destination(path) / path.name}: {err.strerror}") from err
