from hyperpod_kit.data.dataset import IndexedDataset as IndexedDataset
from hyperpod_kit.data.index.layout import SampleIndex as SampleIndex
from hyperpod_kit.data.loading.loader import ElasticLoader as ElasticLoader
from hyperpod_kit.data.loading.position import Last as Last
from hyperpod_kit.data.order.default_order import order_of as order_of
from hyperpod_kit.data.order.file_order import FileOrder as FileOrder
from hyperpod_kit.data.order.mix import MixDataset as MixDataset
from hyperpod_kit.data.order.mix import MixOrder as MixOrder
from hyperpod_kit.data.order.order import SequentialOrder as SequentialOrder
from hyperpod_kit.data.order.order import ShuffledOrder as ShuffledOrder
from hyperpod_kit.data.order.spread_order import SpreadOrder as SpreadOrder
from hyperpod_kit.data.reading.chunks import DiskCache as DiskCache
from hyperpod_kit.data.tokens.lengths import lengths_of as lengths_of
from hyperpod_kit.data.tokens.megatron import MegatronTokens as MegatronTokens
from hyperpod_kit.data.tokens.packing import PackedDataset as PackedDataset
from hyperpod_kit.data.tokens.packing import packed_batch as packed_batch
from hyperpod_kit.data.tokens.packing import padded as padded

__all__ = [
    "DiskCache",
    "ElasticLoader",
    "FileOrder",
    "IndexedDataset",
    "Last",
    "MegatronTokens",
    "MixDataset",
    "MixOrder",
    "PackedDataset",
    "SampleIndex",
    "SequentialOrder",
    "ShuffledOrder",
    "SpreadOrder",
    "lengths_of",
    "order_of",
    "packed_batch",
    "padded",
]
