"""Pages of the Python API: one directive of mkdocstrings for each public name, which shows its docstring and types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import hyperpod_kit.checkpoint as checkpoint
import hyperpod_kit.data as data
from hyperpod_kit import errors

FOLDER = "reference/python"

_CHECKPOINT_TOPICS = {
    "Save and restore": ("Manager", "State", "Handle", "Restored", "Fresh", "CheckpointInfo", "RestoreProgress"),
    "Read without a Manager": ("load_state", "load_weights", "LoadedWeights", "ConvertedFrom"),
    "Look at a root": ("list_checkpoints", "newest_complete", "newest_valid"),
    "Retention": ("Latest", "EverySteps", "EverySeconds", "Best", "Pinned", "Policy", "CheckpointFacts"),
}
_DATA_TOPICS = {
    "Read and load": ("SampleIndex", "IndexedDataset", "ElasticLoader", "Last", "DiskCache"),
    "Order and mixture": (
        "order_of",
        "SequentialOrder",
        "ShuffledOrder",
        "SpreadOrder",
        "FileOrder",
        "MixDataset",
        "MixOrder",
    ),
    "Tokens": ("PackedDataset", "packed_batch", "padded", "lengths_of", "MegatronTokens"),
}
_ADAPTERS = {
    "torch.distributed.checkpoint": ("hyperpod_kit.checkpoint.adapters.dcp", ("Checkpoints",)),
    "Hugging Face Trainer": (
        "hyperpod_kit.checkpoint.adapters.huggingface",
        ("CheckpointedTrainer", "CheckpointedTraining", "get_last_checkpoint"),
    ),
    "Training data for the Hugging Face Trainer": (
        "hyperpod_kit.data.trainer",
        ("ElasticTrainer", "ElasticTraining", "newest_checkpoint"),
    ),
    "Lightning": ("hyperpod_kit.checkpoint.adapters.lightning", ("CheckpointedFit",)),
    "Accelerate": ("hyperpod_kit.checkpoint.adapters.accelerate", ("CheckpointedAccelerator",)),
    "Megatron-core": ("hyperpod_kit.checkpoint.adapters.megatron", ("MegatronCheckpoints",)),
    "DeepSpeed": ("hyperpod_kit.checkpoint.adapters.deepspeed", ("ZeroCheckpoints",)),
    "torchtitan": ("hyperpod_kit.checkpoint.adapters.torchtitan", ("install",)),
}
_ERROR_ROOTS = {
    "Checkpoints": errors.CheckpointError,
    "Training data": errors.DataError,
}

_CHECKPOINT = """# Python API: hyperpod_kit.checkpoint

For training programs that save and restore. `from hyperpod_kit.checkpoint import Manager, State` needs torch; names are
loaded on first use. [Checkpoints](../../checkpoints.md) explains how they work together.
"""
_DATA = """# Python API: hyperpod_kit.data

For training programs that stream their data. `from hyperpod_kit.data import SampleIndex, IndexedDataset, ElasticLoader`
loads each name on first use. [Training data](../../data.md) explains how they work together.
"""
_FRAMEWORKS = """# Python API: frameworks

For training programs on a framework. Each adapter puts the checkpoint engine or the loader under a framework that keeps
its own training loop, and is imported from the module that is named with it.
"""
_ERRORS = """# Python API: errors

For programs that handle the errors of `hyperpod_kit.checkpoint` and `hyperpod_kit.data`. All are importable from
`hyperpod_kit.errors` and derive from `HyperpodKitError`.
"""


@dataclass(frozen=True)
class PublicName:
    """A name as users import it, and the module that defines it."""

    name: str
    package: str
    module: str

    @property
    def path(self) -> str:
        """As users write it: `hyperpod_kit.checkpoint.Manager`."""
        return f"{self.package}.{self.name}"

    @property
    def anchor(self) -> str:
        return self.path.lower()


def checkpoint_page() -> str:
    """The page of `hyperpod_kit.checkpoint`. Raises KeyError for a public name without a topic."""
    return _page_of_package(_CHECKPOINT, checkpoint.__name__, _modules_of(checkpoint), _CHECKPOINT_TOPICS)


def data_page() -> str:
    """The page of `hyperpod_kit.data`. Raises KeyError for a public name without a topic."""
    return _page_of_package(_DATA, data.__name__, _modules_of(data), _DATA_TOPICS)


def frameworks_page() -> str:
    """The page of the adapters."""
    lines = [_FRAMEWORKS]
    for title, (module, names) in _ADAPTERS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _directive(PublicName(name, module, module))
    return "\n".join(lines)


def errors_page() -> str:
    """The page of the exceptions that training programs meet."""
    lines = [_ERRORS]
    for title, root in _ERROR_ROOTS.items():
        lines += [f"## {title}", ""]
        for error in dict.fromkeys(_with_subclasses(root)):
            lines += _directive(PublicName(error.__name__, errors.__name__, errors.__name__))
    return "\n".join(lines)


def _modules_of(package: ModuleType) -> dict[str, str]:
    """Public name -> the module that defines it: the table by which the package loads names on first use."""
    return dict(vars(package)["_MODULES"])


def _page_of_package(
    introduction: str, package: str, modules: dict[str, str], topics: dict[str, tuple[str, ...]]
) -> str:
    listed = {name for names in topics.values() for name in names}
    if missing := sorted(set(modules) ^ listed):
        raise KeyError(f"docs_build/api_pages.py and {package} differ in {', '.join(missing)}")
    lines = [introduction]
    for title, names in topics.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _directive(PublicName(name, package, f"{package}.{modules[name]}"))
    return "\n".join(lines)


def _directive(public: PublicName) -> Iterator[str]:
    """A heading with the name as users import it: mkdocstrings would show the module that defines it."""
    yield f"### `{public.name}` {{ #{public.anchor} }}"
    yield ""
    yield f"`from {public.package} import {public.name}`"
    yield ""
    yield f"::: {public.module}.{public.name}"
    yield ""


def _with_subclasses(error: type[errors.HyperpodKitError]) -> Iterator[type[errors.HyperpodKitError]]:
    yield error
    for subclass in error.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield from _with_subclasses(subclass)
