"""A committed checkpoint in another format: DCP's own, safetensors, torch.save, or a framework's."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from hyperpod_kit.checkpoint import codec, whole_tensors
from hyperpod_kit.checkpoint.agent import extra_state
from hyperpod_kit.checkpoint.appearing import appearing
from hyperpod_kit.checkpoint.dcp import reshard, subclass_parts
from hyperpod_kit.checkpoint.exporting import preview, rooms, to_deepspeed, to_weights
from hyperpod_kit.checkpoint.exporting.preview import LIGHTNING
from hyperpod_kit.checkpoint.formats.byte_progress import CountedBytes, Progress, unsaid
from hyperpod_kit.checkpoint.repository import selection, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import Where, as_store
from hyperpod_kit.checkpoint.whole_tensors import Room
from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.untrusted import by_descriptor

FORMATS = ("dcp", "deepspeed", "huggingface", "lightning", "megatron", "safetensors", "torch")

Taken = TypeVar("Taken")
Rejections = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Exported:
    """`rejected`: newer checkpoints that were passed over, and why. `own`: how many of the model's tensors are each
    rank's own, so that only rank 0's are here."""

    attempt: str
    step: int
    tensors: int
    bytes: int
    rejected: Rejections = ()
    own: int = 0


def export(
    where: Where,
    to: str,
    dest: str | os.PathLike[str],
    *,
    attempt: str | None = None,
    dry_run: bool = False,
    progress: Progress = unsaid,
) -> Exported:
    """Write a checkpoint to `dest`, which must not exist; it appears complete and synced, or not at all.

    Every byte is verified while it is read. Without `attempt` the newest valid checkpoint is taken. `dcp` makes a
    directory and `torch` a file with the nested state (`model`, `optimizer`, ... of all ranks, of what is each rank's
    own rank 0's); `safetensors` a file with the model's tensors, a tied one under its first name; `huggingface` a
    directory that `from_pretrained` reads, of a checkpoint that a CheckpointedTraining saved; `lightning` a file that
    `Trainer.fit(ckpt_path=)` reads, of one that a CheckpointedFit saved; `megatron` a directory that Megatron-core
    reads, and `deepspeed` one that DeepSpeed's `load_checkpoint` reads, with all ranks' partitions, each of one that
    its adapter saved. What it holds of a checkpoint are pages of files on the disk of `dest`, which the system can take
    back: as much room as the checkpoint has is needed there for the time, but for `safetensors` and `huggingface`;
    twice that for `megatron`, and as much as one file of one rank for `deepspeed`. `progress` hears of what was read
    and proved. With `dry_run` nothing is written and no tensor is read.
    Raises UsageError, NoCheckpoint, NoValidCheckpoint, StorageUnreadable, CheckpointError, DigestUnavailable, OSError.
    """
    if to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}: expected one of {', '.join(FORMATS)}")
    target = Path(dest)
    if target.exists():
        raise UsageError(f"{target} exists", hint="name a place that does not")
    if not target.parent.is_dir():
        raise Absent(f"{target.parent} is no directory", hint=f"mkdir -p {target.parent}")
    store = as_store(where)
    if dry_run:
        seen, rejected = _chosen(store, attempt, lambda name: preview.look(store, name, to))
        return Exported(*seen, rejected)
    if to == "deepspeed":
        return _deepspeed(store, target, attempt, progress)
    if to in ("huggingface", "safetensors"):
        return _weights(store, to, target, attempt, progress)
    with appearing(target) as beside, rooms.scratch(beside) as room:
        state, rejected = _chosen(store, attempt, lambda name: _read(store, name, to, room, progress))
        _MAKERS[to](state, beside, room)
    own = to_weights.own_ones(state.tensors)
    return Exported(state.attempt, state.step, len(state.tensors), state.bytes, rejected, own)


def lightning_checkpoint(where: Where, *, attempt: str | None = None) -> dict[str, Any]:
    """What Lightning would read from a file of its own: of the newest valid checkpoint, or of `attempt`. Of what is
    each rank's own rank 0's. Raises as `export` does."""
    store = as_store(where)
    return _lightning_of(_chosen(store, attempt, lambda name: _read(store, name, "lightning"))[0])


def _chosen(store: Store, attempt: str | None, take: Callable[[str], Taken]) -> tuple[Taken, Rejections]:
    """What `take` makes of that attempt, or of the newest that it does not reject, and which were rejected."""
    if attempt is not None:
        return take(attempt), ()
    taken, found = selection.newest(store, take)
    return taken, found.rejected


def _deepspeed(store: Store, target: Path, attempt: str | None, progress: Progress) -> Exported:
    with appearing(target) as beside, rooms.scratch(beside) as room:
        made, rejected = _chosen(store, attempt, lambda name: to_deepspeed.write(store, name, beside, room, progress))
    return Exported(*made, rejected)


@dataclass(frozen=True)
class _State:
    attempt: str
    step: int
    bytes: int
    nested: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def _read(store: Store, attempt: str, to: str, room: Room | None = None, progress: Progress = unsaid) -> _State:
    """All of a checkpoint that is not another rank's own, verified."""
    body = verify.read_manifest(store, attempt)
    tree = extra_state.merge_trees(verify.read_extra(store, attempt, body.extra))
    preview.refuse_of_others(to, attempt, tree)
    with reshard.opened(store, attempt, body) as opened:
        rows = opened.rows()
        names = set(codec.tensor_names(tree)) or set(rows)  # of what a Writer made the tree names no tensors
        tensors = whole_tensors.read(opened, rows, names, room, CountedBytes(body.total_bytes, progress))
    nested = (
        _from_dcp(tree["dcp"], tensors)
        if "dcp" in tree
        else {name: codec.decode(part, tensors.__getitem__, plain=True) for name, part in tree.items()}
    )
    return _State(attempt, body.step, body.total_bytes, nested, tensors)


def _from_dcp(written: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What `dcp.save` was given, less the items that are pickles: those are nobody's to open unasked."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    opened = {name: tensor for name, tensor in tensors.items() if name not in written["bytes"]}
    paths = {name: tuple(written["paths"].get(name, (name,))) for name in opened}
    for name, record in subclass_parts.records_in(written).items():
        paths.update(subclass_parts.part_paths(record, tuple(written["paths"].get(name, (name,)))))
    return dict(unflatten_state_dict(opened, paths))


def _to_dcp(state: _State, path: Path, _: Room) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no process group is there is what is meant
        save(state.nested, storage_writer=FileSystemWriter(str(path)), no_dist=True)


def _save(value: object, path: Path) -> None:
    with by_descriptor.stream(path, "wb") as out:
        torch.save(value, out)


def _to_megatron(state: _State, path: Path, room: Room) -> None:
    from hyperpod_kit.checkpoint.exporting import to_megatron

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # as above
        to_megatron.write(state.nested, path, room)


def _weights(store: Store, to: str, target: Path, attempt: str | None, progress: Progress) -> Exported:
    """The model's tensors alone, straight into the file of safetensors that they make."""
    with appearing(target) as beside:
        made, rejected = _chosen(store, attempt, lambda name: to_weights.write(store, name, to, beside, progress))
    return Exported(*made[:-1], rejected, made.own)


def _lightning_of(state: _State) -> dict[str, Any]:
    nested = state.nested
    words = nested[f"objects.{LIGHTNING}"]
    paths = itertools.chain(["optimizer"], (f"objects.optimizer{number}" for number in itertools.count(1)))
    optimizers = [_numbered(nested[path]) for path in itertools.takewhile(nested.__contains__, paths)]
    return {**words, "state_dict": nested["model"], "optimizer_states": optimizers}


def _numbered(saved: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state with numbers in the place of names, as torch has it."""
    names = [name for group in saved["param_groups"] for name in group["params"]]
    number = {name: at for at, name in enumerate(names)}
    return {
        "state": {number.get(name, name): values for name, values in saved["state"].items()},
        "param_groups": [
            {**group, "params": [number[name] for name in group["params"]]} for group in saved["param_groups"]
        ],
    }


_MAKERS: dict[str, Callable[[_State, Path, Room], None]] = {
    "dcp": _to_dcp,
    "lightning": lambda state, path, _: _save(_lightning_of(state), path),
    "megatron": _to_megatron,
    "torch": lambda state, path, _: _save(state.nested, path),
}
"""Those that write what is in memory: torch or Megatron's format, a file or a directory."""
