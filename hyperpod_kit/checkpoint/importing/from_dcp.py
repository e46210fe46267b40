"""What plain torch.distributed.checkpoint wrote, as a checkpoint of Checkpoints: the same names, its tensors in the
boxes that it has them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hyperpod_kit.checkpoint.formats import dcp_folder
from hyperpod_kit.checkpoint.formats.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.formats.dcp_folder import DcpFolder
from hyperpod_kit.checkpoint.importing.imported_tree import ImportedTree
from hyperpod_kit.checkpoint.importing.new_root import RankPart
from hyperpod_kit.errors import CheckpointError


def rank_parts_by_box_number(files: ImportedFiles, folder: DcpFolder) -> Iterator[RankPart]:
    """Yield as many shards as a tensor has boxes at most, each with one box of each. Raise UsageError,
    CheckpointError."""
    imported = ImportedTree()
    items: dict[str, Any] = {name: imported.placeholder(name) for name in folder.chunks}
    items.update((name, dcp_folder.load_value(files, folder, name)) for name in folder.values)
    tree = imported.encode(_nest_items_by_paths(items, folder))
    for number in range(folder.max_chunks_per_tensor):
        pieces = [boxes[number] for boxes in folder.chunks.values() if number < len(boxes)]
        if number == 0:
            pieces += imported.pieces
        yield RankPart(pieces, tree)


class _PathContainer(dict[Any, Any]):
    """A container of the paths, and not of a value."""


def _nest_items_by_paths(items: dict[str, Any], folder: DcpFolder) -> dict[Any, Any]:
    root = _PathContainer()
    for name, item in items.items():
        path = folder.paths.get(name, (name,))
        inner = root
        for key in path[:-1]:
            inner = inner.setdefault(key, _PathContainer())
            if not isinstance(inner, _PathContainer):
                raise CheckpointError(f"{folder.path} has {name} below a value")
        if path[-1] in inner:
            raise CheckpointError(f"{folder.path} has two items at {name}")
        inner[path[-1]] = item
    return {name: _numbered_dicts_to_lists(item) for name, item in root.items()}


def _numbered_dicts_to_lists(value: Any) -> Any:
    """Turn path containers whose keys are numbers into lists: numbers in a path are those of a list."""
    if not isinstance(value, _PathContainer):
        return value
    if not all(isinstance(key, int) for key in value):
        return {key: _numbered_dicts_to_lists(item) for key, item in value.items()}
    if sorted(value) != list(range(len(value))):
        raise CheckpointError(f"a list in it has the items {sorted(value)[:8]}")
    return [_numbered_dicts_to_lists(value[number]) for number in range(len(value))]
