"""Training data: every sample exactly once an epoch, on any number of ranks, read from where it lies.

`hyperpod-kit data index` makes an index of files. Begin with `SampleIndex.open`, give it to an `IndexedDataset`, and
that to an `ElasticLoader`, whose position `State(loader=loader)` saves with the weights. `PackedDataset` makes windows
of tokens, `MixDataset` joins several data sets, `MegatronTokens` reads Megatron's files; the orders define which sample
is at which position.

`from hyperpod_kit.data import SampleIndex, IndexedDataset, ElasticLoader`: names are loaded on first use, so that an
index is made without torch.
"""

from __future__ import annotations

_MODULES = {
    "DiskCache": "reading.chunks",
    "ElasticLoader": "loading.loader",
    "FileOrder": "order.file_order",
    "IndexedDataset": "dataset",
    "Last": "loading.position",
    "MegatronTokens": "tokens.megatron",
    "MixDataset": "order.mix",
    "MixOrder": "order.mix",
    "PackedDataset": "tokens.packing",
    "SampleIndex": "index.layout",
    "SequentialOrder": "order.order",
    "ShuffledOrder": "order.order",
    "SpreadOrder": "order.spread_order",
    "lengths_of": "tokens.lengths",
    "order_of": "order.default_order",
    "packed_batch": "tokens.packing",
    "padded": "tokens.packing",
}
"""Public name -> the module below this package that defines it; `__init__.pyi` says the same to type checkers."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
