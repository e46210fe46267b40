"""Training data: every sample exactly once an epoch, on any number of ranks, read from where it lies.

`from hyperpod_kit.data import SampleIndex, IndexedDataset, ElasticLoader`: names are loaded on first use, so that an
index is made without torch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hyperpod_kit.data.dataset import IndexedDataset as IndexedDataset
    from hyperpod_kit.data.file_order import FileOrder as FileOrder
    from hyperpod_kit.data.index.layout import SampleIndex as SampleIndex
    from hyperpod_kit.data.lengths import lengths_of as lengths_of
    from hyperpod_kit.data.loader import ElasticLoader as ElasticLoader
    from hyperpod_kit.data.megatron import MegatronTokens as MegatronTokens
    from hyperpod_kit.data.mix import MixDataset as MixDataset
    from hyperpod_kit.data.mix import MixOrder as MixOrder
    from hyperpod_kit.data.order import SequentialOrder as SequentialOrder
    from hyperpod_kit.data.order import ShuffledOrder as ShuffledOrder
    from hyperpod_kit.data.packing import PackedDataset as PackedDataset
    from hyperpod_kit.data.packing import padded as padded
    from hyperpod_kit.data.position import Last as Last
    from hyperpod_kit.data.reading.chunks import DiskCache as DiskCache

_WHERE = {
    "DiskCache": "reading.chunks",
    "ElasticLoader": "loader",
    "FileOrder": "file_order",
    "IndexedDataset": "dataset",
    "Last": "position",
    "MegatronTokens": "megatron",
    "MixDataset": "mix",
    "MixOrder": "mix",
    "PackedDataset": "packing",
    "SampleIndex": "index.layout",
    "SequentialOrder": "order",
    "ShuffledOrder": "order",
    "lengths_of": "lengths",
    "padded": "packing",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
