"""A checkpoint of another program as the first one of a root."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hyperpod_kit.checkpoint.formats import dcp_folder, safetensors_files
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress, unsaid
from hyperpod_kit.checkpoint.formats.byte_sources import ImportedFiles, open_files
from hyperpod_kit.checkpoint.importing import (
    from_dcp,
    from_deepspeed,
    from_megatron,
    from_torch,
    from_weights,
    new_root,
    origin,
)
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.checkpoint.repository.store.open import Where, as_store
from hyperpod_kit.errors import Absent, UsageError


@dataclass(frozen=True)
class ImportedCheckpoint:
    """`ranks`: how many it is for, or in how many shards it lies. `unchecked`: how many files, of DCP how many tensors'
    boxes, were without check sums, so that a changed byte of theirs would not have been seen. `already`: it was there,
    imported from the same files. `attempt`: empty after a dry run."""

    attempt: str
    step: int
    ranks: int
    tensors: int
    bytes: int
    unchecked: int = 0
    already: bool = False


class _Found(NamedTuple):
    """A source that was looked at. `step`: None where it does not say. `place`: where the files are, if elsewhere."""

    step: int | None
    ranks: int
    parts: Iterator[RankPart]
    bytes: int
    unchecked: int
    place: Path | None = None


def import_checkpoint(
    source: str | os.PathLike[str],
    kind: str,
    where: Where,
    *,
    tag: str | None = None,
    step: int | None = None,
    dry_run: bool = False,
    progress: Progress = unsaid,
) -> ImportedCheckpoint:
    """Commit what lies at `source` to the root `where`, which must not have a checkpoint but the one that this makes:
    then nothing is done.

    `kind`, one of SOURCES: `dcp`, the directory of a `torch.distributed.checkpoint.save`; `deepspeed`, the `save_dir`
    of plain DeepSpeed's `engine.save_checkpoint` under ZeRO 1 to 3, of which `tag` names the one that counts in place
    of its file `latest`; `huggingface`, a directory that `from_pretrained` reads; `megatron`, a checkpoint_dir of
    Megatron-core's `dist_checkpointing.save`; `safetensors` and `torch`, a file, of a model's tensors or of what
    `torch.save` was given. `step` in place of the one that the source says, or that its name ends in (deepspeed: that
    of the tag). All files are looked at before anything is written, and the bytes are proved where they have check
    sums. Nothing counts before all is written. 16 MB of a tensor are in memory at a time, and what is no tensor.
    With `dry_run` nothing is written, and tensors whose check sums lie beside them are not read.
    Raises UsageError, CheckpointError, RunIsOwned, OSError.
    """
    if kind not in SOURCES:
        raise UsageError(f"cannot import from {kind!r}: expected one of {', '.join(SOURCES)}")
    if tag is not None and kind != "deepspeed":
        raise UsageError(f"--tag is of deepspeed, and this is {kind}", hint="name the directory or file itself")
    if step is not None and step < 0:
        raise UsageError(f"step is {step}, expected 0 or more")
    store = as_store(where)
    path = origin.place_of(source)
    if not path.exists():
        raise Absent(f"{path} is not there", hint=f"ls {path.parent}")
    with open_files() as files:
        found = _deepspeed(path, tag) if kind == "deepspeed" else _KINDS[kind](files, path)
        chosen = step if step is not None else found.step if found.step is not None else _number_of(path)
        of = origin.identity(found.place or path, kind, chosen)
        there = origin.made_from(store, of)
        if there is not None:
            attempt, body = there
            return ImportedCheckpoint(
                attempt, chosen, body.world, body.tensors, found.bytes, found.unchecked, already=True
            )
        if dry_run:
            made = new_root.looked_at(found.ranks, found.parts)
        else:
            said = {"writer": f"import-{kind}", origin.SOURCE: of}
            done = CountedBytes(found.bytes, progress)
            made = new_root.write(store, chosen, found.ranks, found.parts, said, done)
    return ImportedCheckpoint(made.attempt, chosen, found.ranks, made.tensors, found.bytes, found.unchecked)


def _deepspeed(path: Path, tag: str | None) -> _Found:
    found = from_deepspeed.checked(path, tag)
    ranks = len(found.files)
    parts = new_root.parts_of(from_deepspeed.states(found), ranks)
    return _Found(found.step, ranks, parts, found.bytes, found.unchecked, found.path)


def _dcp(files: ImportedFiles, path: Path) -> _Found:
    found = dcp_folder.looked_at(files, path)
    return _Found(None, found.most_boxes, from_dcp.parts(files, found), found.bytes, found.unchecked)


def _huggingface(files: ImportedFiles, path: Path) -> _Found:
    found = safetensors_files.of_folder(files, path)
    return _Found(from_weights.step_of(path), 1, from_weights.parts(found), found.bytes, found.unchecked)


def _megatron(files: ImportedFiles, path: Path) -> _Found:
    found = from_megatron.looked_at(files, path)
    boxes, common = found.found, found.common
    parts = from_megatron.parts(files, found)
    return _Found(found.step, 1, parts, boxes.bytes + common.bytes, boxes.unchecked + common.unchecked)


def _safetensors(files: ImportedFiles, path: Path) -> _Found:
    found = safetensors_files.of_file(files, path)
    return _Found(0, 1, from_weights.parts(found), found.bytes, found.unchecked)


def _torch(files: ImportedFiles, path: Path) -> _Found:
    found = from_torch.looked_at(path)
    return _Found(None, 1, from_torch.parts(found), found.bytes, found.unchecked)


_KINDS: dict[str, Callable[[ImportedFiles, Path], _Found]] = {
    "dcp": _dcp,
    "huggingface": _huggingface,
    "megatron": _megatron,
    "safetensors": _safetensors,
    "torch": _torch,
}
SOURCES = tuple(sorted([*_KINDS, "deepspeed"]))


def _number_of(path: Path) -> int:
    """The last number in its name. Raises UsageError where there is none."""
    numbers = re.findall(r"\d+", path.resolve().name)
    if not numbers:
        raise UsageError(f"{path} does not say which step it is of", hint="--step NUMBER")
    return int(numbers[-1])
