"""Formats that are written from the whole state of a checkpoint, nested as the program had it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files import scratch_files, weights_file
from hyperpod_kit.checkpoint.convert.files.byte_progress import CountedBytes, Progress, no_progress
from hyperpod_kit.checkpoint.convert.files.foreign_format import ExportSource, ForeignFormat, WrittenExport
from hyperpod_kit.checkpoint.dcp import reshard, subclass_parts
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.restore import gathered_tensors
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator
from hyperpod_kit.untrusted import by_descriptor


@dataclass(frozen=True)
class ExportedState:
    """All of a checkpoint that is not another rank's own, verified. `bytes`: of the whole checkpoint."""

    checkpoint_id: str
    step: int
    bytes: int
    nested: dict[str, Any]
    tensors: dict[str, torch.Tensor]


class NestedStateFormat(ForeignFormat):
    """A subclass overrides `write_state`. The state is held in pages of files on the disk of the destination."""

    can_export = True

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        with scratch_files.scratch_allocator(path) as allocate:
            state = source.read(lambda name: self.read_state(source.store, name, allocate, source.progress))
            self.write_state(state, path, allocate)
        per_rank = weights_file.count_per_rank_model_tensors(state.tensors)
        return WrittenExport(state.checkpoint_id, state.step, len(state.tensors), state.bytes, per_rank)

    def write_state(self, state: ExportedState, path: Path, allocate: TensorAllocator) -> None:
        """Write the state to `path`. `allocate`: for tensors that are put together."""
        raise NotImplementedError

    def read_state(
        self,
        store: Store,
        checkpoint_id: str,
        allocate: TensorAllocator | None = None,
        progress: Progress = no_progress,
    ) -> ExportedState:
        """Read and verify a checkpoint. Raise UsageError, StorageUnreadable, CheckpointError, OSError."""
        body = verify.read_manifest(store, checkpoint_id)
        tree = self.read_tree(store, checkpoint_id, verify.read_verified_small_file(store, checkpoint_id, body.extra))
        self.require_exportable(checkpoint_id, tree)
        with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
            rows = checkpoint.read_piece_rows()
            names = set(codec.tensor_names(tree)) or set(rows)  # of what a Writer made the tree names no tensors
            tensors = gathered_tensors.read_full_tensors_alone(
                checkpoint, rows, names, allocate, CountedBytes(body.total_bytes, progress)
            )
        if "dcp" in tree:
            nested = _nested_from_dcp_without_pickles(tree["dcp"], tensors)
        else:
            nested = {name: codec.decode(part, tensors.__getitem__, plain=True) for name, part in tree.items()}
        return ExportedState(checkpoint_id, body.step, body.total_bytes, nested, tensors)


def torch_save_file(value: object, path: Path) -> None:
    """Write a file of torch.save. Raise OSError."""
    with by_descriptor.open_stream_for_writing(path, "wb") as out:
        torch.save(value, out)


def _nested_from_dcp_without_pickles(dcp_tree: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What `dcp.save` was given, less the items that are pickles: those are nobody's to open unasked."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    plain_tensors = {name: tensor for name, tensor in tensors.items() if name not in dcp_tree["bytes"]}
    paths = {name: tuple(dcp_tree["paths"].get(name, (name,))) for name in plain_tensors}
    for name, record in subclass_parts.subclass_records_in(dcp_tree).items():
        paths.update(subclass_parts.part_paths(record, tuple(dcp_tree["paths"].get(name, (name,)))))
    return dict(unflatten_state_dict(plain_tensors, paths))
