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

from hyperpod_kit.checkpoint.boxed_state import name_of, object_of
from hyperpod_kit.checkpoint.repository.shard import TensorSpec
from hyperpod_kit.checkpoint.whole_tensors import Room
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
        return object if isinstance(object, io.BytesIO) else super().transform_object(write_item, object)


def write(nested: dict[str, Any], path: Path, room: Room) -> None:
    """`nested`: the whole state; `room`: for the tensors that are put together. Raises HyperpodKitError, OSError."""
    boxes = nested["boxes"]
    made: dict[str, Any] = dict(
        room({key: TensorSpec(key, dtype, tuple(whole)) for key, (dtype, whole, _) in boxes.items()})
    )
    for key, (_, whole, rows) in boxes.items():
        for offsets, shape in rows:
            part = made[key]
            for dim, (at, extent) in enumerate(zip(offsets, [1] * (len(whole) - len(shape)) + shape, strict=True)):
                part = part.narrow(dim, at, extent)
            part.copy_(nested["tensors"][name_of(key, offsets, tuple(shape), whole)].view(part.shape))
    for key, data in nested["objects"].items():
        buffer = io.BytesIO()
        torch.save([object_of(bytes(data.numpy()))], buffer)
        made[key] = buffer
    by_descriptor.make_directory(path)
    save(made, storage_writer=FileSystemWriter(str(path)), planner=_Planner(flatten_state_dict=False), no_dist=True)
    with by_descriptor.stream(path / "common.pt", "wb") as out:
        torch.save(nested["common"], out)
    by_descriptor.write_text(path / "metadata.json", json.dumps(_CONFIG))
