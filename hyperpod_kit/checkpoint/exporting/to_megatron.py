"""A checkpoint of the Megatron adapter as Megatron-core writes one itself (`torch_dist`), without Megatron."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save

from hyperpod_kit.checkpoint.gathered_tensors import TensorAllocator
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.sharded_state import stored_name, torch_load_with_length
from hyperpod_kit.untrusted import by_descriptor

_CONFIG = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


class _Planner(DefaultSavePlanner):
    """Objects are bytes already."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """See DefaultSavePlanner."""
        if isinstance(object, io.BytesIO):
            return object
        return super().transform_object(write_item, object)


def write(nested: dict[str, Any], path: Path, allocate: TensorAllocator) -> None:
    """Write the directory `path` as Megatron-core does. `nested`: the whole state; `allocate`: for the tensors
    that are put together. Raise HyperpodKitError, OSError."""
    boxes = nested["boxes"]
    state: dict[str, Any] = dict(
        allocate({key: TensorSpec(key, dtype, tuple(full_shape)) for key, (dtype, full_shape, _) in boxes.items()})
    )
    for key, (_, full_shape, rows) in boxes.items():
        for offsets, shape in rows:
            part = state[key]
            for dim, (at, extent) in enumerate(zip(offsets, [1] * (len(full_shape) - len(shape)) + shape, strict=True)):
                part = part.narrow(dim, at, extent)
            part.copy_(nested["tensors"][stored_name(key, offsets, tuple(shape), full_shape)].view(part.shape))
    for key, data in nested["objects"].items():
        buffer = io.BytesIO()
        torch.save([torch_load_with_length(bytes(data.numpy()))], buffer)
        state[key] = buffer
    by_descriptor.make_directory(path)
    save(state, storage_writer=FileSystemWriter(str(path)), planner=_Planner(flatten_state_dict=False), no_dist=True)
    with by_descriptor.open_stream_for_writing(path / "common.pt", "wb") as out:
        torch.save(nested["common"], out)
    by_descriptor.write_text(path / "metadata.json", json.dumps(_CONFIG))
