"""Which tensor of a checkpoint each tensor of a model is filled from, compared by names, shapes and types alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec import sharding, subclasses
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.ranks.wire_values import register_type
from hyperpod_kit.checkpoint.repository.format import non_tensor_state
from hyperpod_kit.checkpoint.repository.format.rows import Rows
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import CheckpointError, StorageUnreadable
from hyperpod_kit.untrusted.text import clean_one_line


@dataclass(frozen=True)
class ConvertedFrom:
    """A tensor of the model that is made of some in the checkpoint, for a model whose layers are built otherwise.

    Attributes:
        names: The names in the checkpoint.
        by: Called with these tensors, whole, in host memory and in the checkpoint's type; returns the whole tensor of
            the model. For example `torch.cat` over query, key and value, or a transposition.

    Example:
        import torch
        from hyperpod_kit.checkpoint import ConvertedFrom, Manager, State, load_weights

        separate = torch.nn.ModuleDict({name: torch.nn.Linear(4, 4) for name in "qkv"})
        fused = torch.nn.ModuleDict({"qkv": torch.nn.Linear(4, 12)})

        def source_of(name: str) -> ConvertedFrom:
            kind = name.removeprefix("qkv.")
            return ConvertedFrom((f"q.{kind}", f"k.{kind}", f"v.{kind}"), by=lambda *parts: torch.cat(parts))

        with Manager("/tmp/separate") as manager:
            manager.save(0, State(separate), on_busy="wait")
        load_weights("/tmp/separate", fused, names=source_of)
    """

    names: tuple[str, ...]
    by: Callable[..., torch.Tensor]


Source = str | ConvertedFrom | None
Sources = Callable[[str], Source]


@register_type
class SavedTensor(NamedTuple):
    """A tensor of the checkpoint. Tied ones have the same `stored`; `path` leads to it in the tree. `kind`: the class
    of a subclass that was saved by its parts, "" of any other; then its type and shape are not known."""

    stored: str
    path: list[Any]
    dtype: str
    shape: list[int]
    kind: str = ""


@dataclass
class Match:
    """What fits. `pairs`: a name of the model and the one in the checkpoint; `conversions`: by the model's names. The
    others as in `LoadedWeights`."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    conversions: dict[str, ConvertedFrom] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def filled(self) -> list[str]:
        """Return the model's names that this match fills."""
        return [*(here for here, _ in self.pairs), *self.conversions]

    @property
    def problem(self) -> str | None:
        """Return which names are missing, of another kind or unexpected, as text; None where everything
        matches."""
        rest = {
            "missing in the checkpoint": self.missing,
            "of another shape or kind in the checkpoint": self.other,
            "unexpected": self.unexpected,
        }
        problems = [f"{word} {list(map(clean_one_line, names[:8]))}" for word, names in rest.items() if names]
        return ", ".join(problems) or None


def read_saved_tensors_or_problem(store: Store, checkpoint_id: str, inside: str) -> dict[str, SavedTensor] | str:
    """Return the tensors of the checkpoint below `inside`, by their names there; or, as text, what is
    wrong with the checkpoint. Raises StorageUnreadable, CheckpointError when there is nothing
    below."""
    try:
        body = verify.read_manifest(store, checkpoint_id)
        tree = extra_state.merge_stage_trees(verify.read_verified_small_file(store, checkpoint_id, body.extra))
        with reshard.open_checkpoint(store, checkpoint_id, body) as checkpoint:
            rows = checkpoint.read_piece_rows()
        sources = _saved_tensors_below(tree, rows, inside)
    except (CheckpointError, OSError) as err:
        if verify.is_storage_failure(err):
            raise StorageUnreadable(checkpoint_id, verify.describe_failure(err), hint="try again later") from err
        return verify.describe_failure(err)
    except Exception as err:  # whoever may write to the root may have written anything
        return verify.describe_unforeseen(err)
    if not sources:
        raise CheckpointError(
            f"{checkpoint_id} has no tensors in {inside!r}; at its top it has {clean_one_line(', '.join(sorted(tree)))}"
        )
    return sources


def _saved_tensors_below(tree: Mapping[str, Any], rows: Rows, inside: str) -> dict[str, SavedTensor]:
    sources: dict[str, SavedTensor] = {}
    for path, record in non_tensor_state.tensor_and_subclass_records(tree):
        name = non_tensor_state.dotted_path(path)
        if not f"{name}.".startswith(f"{inside}."):
            continue
        below, stored = name[len(inside) + 1 :], str(record["name"])
        if record["$"] == "subclass":
            sources[below] = SavedTensor(stored, list(path), "", [], str(record["class"]))
            continue
        if stored not in rows:
            raise CheckpointError(f"{clean_one_line(name)} is in no shard, under {clean_one_line(stored)!r}")
        spec = rows[stored][0].spec
        sources[below] = SavedTensor(stored, list(path), spec.dtype, list(spec.full_shape))
    return sources


def match_tensors_by_name(
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    names: Sources | None,
    drop: Callable[[str], bool] | None,
) -> Match:
    """Match a model's tensors with those of a checkpoint, by `names` and `drop`. Raises TypeError for
    what `names` may not return."""
    matched = Match()
    used: set[str] = set()
    for here, tensor in live.items():
        source: Source = here
        if names is not None:
            source = names(here)
        if isinstance(source, str):
            used.add(source)
            _match_one(matched, here, tensor, source, saved)
        elif isinstance(source, ConvertedFrom):
            used.update(source.names)
            _match_conversion(matched, here, tensor, source, saved)
        elif source is not None:
            raise TypeError(f"names({here!r}) is {source!r}, expected a name, ConvertedFrom or None")
    tied = {id(live[here]) for here in matched.filled}  # what is tied need be there under one of its names
    matched.missing = [here for here in matched.missing if id(live[here]) not in tied]
    for name in sorted(set(saved) - used):
        if drop is not None and drop(name):
            matched.dropped.append(name)
        else:
            matched.unexpected.append(name)
    return matched


def is_of_other_dtype(live: torch.Tensor, saved: SavedTensor) -> bool:
    """Return whether the numbers are of another type in the checkpoint."""
    return not saved.kind and live.dtype != TYPES[saved.dtype]


def subclass_name(tensor: torch.Tensor) -> str:
    """Return the class of a tensor that is saved by its parts, "" of any other."""
    holder = sharding.unwrap_dtensor(tensor)
    if sharding.is_plain(holder) or not hasattr(holder, "__tensor_flatten__"):
        return ""
    return subclasses.name_of_class(type(holder))


def _match_one(matched: Match, here: str, live: torch.Tensor, source: str, saved: Mapping[str, SavedTensor]) -> None:
    saved_tensor = saved.get(source)
    if saved_tensor is None:
        matched.missing.append(here)
    elif not _can_be_filled_from(live, saved_tensor):
        matched.other.append(here)
    else:
        matched.pairs.append((here, source))


def _match_conversion(
    matched: Match, here: str, live: torch.Tensor, source: ConvertedFrom, saved: Mapping[str, SavedTensor]
) -> None:
    if any(name not in saved for name in source.names):
        matched.missing.append(here)
    elif subclass_name(live) or any(saved[name].kind for name in source.names):
        matched.other.append(here)
    else:
        matched.conversions[here] = source


def _can_be_filled_from(live: torch.Tensor, saved: SavedTensor) -> bool:
    kind = subclass_name(live)
    if kind or saved.kind:
        return kind == saved.kind
    return list(live.shape) == saved.shape and are_convertible_dtypes(live.dtype, TYPES[saved.dtype])


def are_convertible_dtypes(live: torch.dtype, saved: torch.dtype) -> bool:
    """Return whether numbers of one type are filled from numbers of the other: of the same, or both
    floating."""
    return live == saved or (live.is_floating_point and saved.is_floating_point)
