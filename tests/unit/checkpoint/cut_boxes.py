"""A planner of torch's that cuts tensors into boxes as the ranks of a sharded model do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType


class Cutting(DefaultSavePlanner):
    """Cuts each tensor of two dimensions into a box of its first row, and two of the rest."""

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        return replace(plan, items=[part for item in plan.items for part in self._cut(item)])

    def _cut(self, item: WriteItem) -> list[WriteItem]:
        data = item.tensor_data
        if item.type == WriteItemType.BYTE_IO or data is None or len(data.size) != 2 or min(data.size) < 4:
            return [item]
        rows, columns = data.size
        boxes = [((0, 0), (1, columns)), ((1, 0), (rows - 1, 3)), ((1, 3), (rows - 1, columns - 3))]
        chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(extent)) for at, extent in boxes]
        return [
            replace(
                item,
                type=WriteItemType.SHARD,
                index=replace(item.index, offset=chunk.offsets, index=number),
                tensor_data=replace(data, chunk=chunk),
            )
            for number, chunk in enumerate(chunks)
        ]

    def resolve_data(self, item: WriteItem) -> Any:
        found = super().lookup_object(item.index) if item.type != WriteItemType.SHARD else None
        if item.type != WriteItemType.SHARD:
            return self.transform_object(item, found)
        whole: Any = self.state_dict[item.index.fqn]
        assert item.tensor_data is not None
        for dim, (at, extent) in enumerate(zip(item.tensor_data.chunk.offsets, item.tensor_data.chunk.sizes)):
            whole = whole.narrow(dim, at, extent)
        return whole
