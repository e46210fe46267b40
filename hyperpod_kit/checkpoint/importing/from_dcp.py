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


def parts(files: ImportedFiles, found: DcpFolder) -> Iterator[RankPart]:
    """As many shards as a tensor has boxes at most, each with one box of each. Raises UsageError, CheckpointError."""
    made = ImportedTree()
    items: dict[str, Any] = {name: made.place(name) for name in found.boxes}
    items.update((name, dcp_folder.value_of(files, found, name)) for name in found.values)
    tree = made.encoded(_nested(items, found))
    for number in range(found.most_boxes):
        held = [boxes[number] for boxes in found.boxes.values() if number < len(boxes)]
        yield RankPart([*held, *(made.pieces if not number else ())], tree)


class _Keys(dict[Any, Any]):
    """A container of the paths, and not of a value."""


def _nested(items: dict[str, Any], found: DcpFolder) -> dict[Any, Any]:
    made = _Keys()
    for name, item in items.items():
        path = found.paths.get(name, (name,))
        inner = made
        for key in path[:-1]:
            inner = inner.setdefault(key, _Keys())
            if not isinstance(inner, _Keys):
                raise CheckpointError(f"{found.path} has {name} below a value")
        if path[-1] in inner:
            raise CheckpointError(f"{found.path} has two items at {name}")
        inner[path[-1]] = item
    return {name: _listed(item) for name, item in made.items()}


def _listed(value: Any) -> Any:
    """Numbers in a path are those of a list."""
    if not isinstance(value, _Keys):
        return value
    if not all(isinstance(key, int) for key in value):
        return {key: _listed(item) for key, item in value.items()}
    if sorted(value) != list(range(len(value))):
        raise CheckpointError(f"a list in it has the items {sorted(value)[:8]}")
    return [_listed(value[number]) for number in range(len(value))]
