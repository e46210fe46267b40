"""A model's weights out of a checkpoint that need not fit it: another head, other names, another type, fewer layers.

Which names fit is compared before a tensor is changed, and every byte is proved by `load_state`, which does the
reading: a tensor of another type is read into one of the checkpoint's type, and copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import fsdp1, modules
from hyperpod_kit.checkpoint.agent import trees
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.dcp import reshard
from hyperpod_kit.checkpoint.dtypes import TYPES
from hyperpod_kit.checkpoint.loading import load_state
from hyperpod_kit.checkpoint.repository import saved_tree, selection, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.checkpoint.values import carried
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, StorageUnreadable

Rename = Callable[[str], str | None]


@dataclass(frozen=True)
class LoadedWeights:
    """What `load_weights` did: the names of the model that were filled, that the checkpoint does not have, and that
    have another shape or kind of number there; and the names in the checkpoint that nobody asked for. `rejected`: newer
    checkpoints, and why they were not taken."""

    attempt: str
    step: int
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    other: tuple[str, ...]
    unexpected: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...] = ()


@carried
class SavedTensor(NamedTuple):
    """A tensor of the checkpoint. Tied ones have the same `stored`; `path` leads to it in the tree."""

    stored: str
    path: list[Any]
    dtype: str
    shape: list[int]


def load_weights(
    root: str | os.PathLike[str],
    model: torch.nn.Module,
    *,
    attempt: str | None = None,
    names: Rename | None = None,
    strict: bool = True,
    inside: str = "model",
    process_group: dist.ProcessGroup | None = None,
) -> LoadedWeights:
    """Fill the parameters and persistent buffers of `model` from the newest checkpoint that can be proved, or from
    `attempt`; nothing else is read. Numbers of another floating type are converted.

    The model may be plain, under DDP, FSDP2 or tensor parallel, on any number of ranks; all ranks call it.
    `names(name)` is the name in the checkpoint of what the model calls `name`, None for what is not to be loaded. With
    `strict` all others must be there, with their shapes, and none may be left over; without it the rest stays as it
    is, and the answer names it: look at `missing`. `inside` is where the weights are: `model` for those of a State,
    `objects.NAME` for one of its objects, a path in the state dict for those of `Checkpoints` (`app.model`).
    What modules have besides tensors (`get_extra_state`), and their own loading hooks, are left alone.
    Raises CheckpointError for what does not fit, before anything is changed, and as `load_state`.
    """
    if fsdp1.is_used(model):
        raise CheckpointError(
            "the model is under FSDP1, which hides its tensors", hint="call load_weights before FSDP(model)"
        )
    live, where = _live(modules.bare(model)), os.fspath(root)
    store, ranks = open_store(os.path.abspath(where) if is_path(where) else where), Ranks(process_group)
    rejected: list[tuple[str, str]] = []
    begun: set[str] = set()
    for name in [attempt] if attempt is not None else _told(ranks, partial(_committed, store)):
        saved = _told(ranks, partial(_tensors, store, name, inside))
        if isinstance(saved, str):
            rejected.append((name, saved))
            continue
        pairs, rest = _matched(live, saved, names)
        problem = _problem(rest, strict, begun.difference(here for here, _ in pairs))
        for found in ranks.gather(problem):
            if found is not None:
                raise CheckpointError(f"{name}: {found}", hint=None if begun else "strict=False loads what fits")
        begun.update(here for here, _ in pairs)
        try:
            step = _fill(where, name, live, saved, pairs, process_group)
        except NoValidCheckpoint as err:
            rejected += err.reasons
            continue
        return LoadedWeights(name, step, tuple(here for here, _ in pairs), *rest, tuple(rejected))
    if rejected:
        raise NoValidCheckpoint(store.url, rejected)
    raise _told(ranks, partial(selection.nothing_left, store, ()))


def _live(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a state dict of the model has, by the bare model's names; tied tensors under each of theirs."""
    kept = model.state_dict(keep_vars=True).keys()
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {modules.plain_name(name): tensor for name, tensor in held if name in kept}


def _told(ranks: Ranks, look: Callable[[], Any]) -> Any:
    """What rank 0 finds, or raises, on all ranks."""
    answer: Any = None
    if ranks.rank == 0:
        try:
            answer = look()
        except (CheckpointError, OSError) as err:
            answer = err
    answer = ranks.broadcast(answer)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _committed(store: Store) -> list[str]:
    return [entry.attempt for entry in selection.walk(store)]


def _tensors(store: Store, attempt: str, inside: str) -> dict[str, SavedTensor] | str:
    """The tensors below `inside`, by their names there; what is wrong with the checkpoint. Raises StorageUnreadable,
    CheckpointError when there is nothing below."""
    try:
        body = verify.read_manifest(store, attempt)
        tree = trees.whole_of(verify.read_extra(store, attempt, body.extra))
        with reshard.opened(store, attempt, body) as opened:
            rows = opened.rows()
    except (CheckpointError, OSError) as err:
        if verify.is_unread(err):
            raise StorageUnreadable(attempt, verify.reason_of(err), hint="try again later") from err
        return verify.reason_of(err)
    found: dict[str, SavedTensor] = {}
    for path, stored in saved_tree.tensors(tree):
        name = saved_tree.spelled(path)
        if f"{name}.".startswith(f"{inside}."):
            spec = rows[stored][0].spec
            found[name[len(inside) + 1 :]] = SavedTensor(stored, list(path), spec.dtype, list(spec.whole))
    if not found:
        raise CheckpointError(f"{attempt} has no tensors in {inside!r}; at its top it has {', '.join(sorted(tree))}")
    return found


_Rest = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _matched(
    live: Mapping[str, torch.Tensor], saved: Mapping[str, SavedTensor], names: Rename | None
) -> tuple[list[tuple[str, str]], _Rest]:
    """(pairs of a name here and one in the checkpoint, (missing, other, unexpected))."""
    wanted = {here: names(here) if names is not None else here for here in live}
    pairs, missing, other = [], [], []
    for here, there in wanted.items():
        if there is None:
            continue
        if there not in saved:
            missing.append(here)
        elif not _fits(live[here], saved[there]):
            other.append(here)
        else:
            pairs.append((here, there))
    filled = {id(live[here]) for here, _ in pairs}  # what is tied need be there under one of its names
    missing = [here for here in missing if id(live[here]) not in filled]
    return pairs, (tuple(missing), tuple(other), tuple(sorted(set(saved).difference(wanted.values()))))


def _fits(live: torch.Tensor, saved: SavedTensor) -> bool:
    kind = TYPES[saved.dtype]
    return list(live.shape) == saved.shape and (
        live.dtype == kind or (live.dtype.is_floating_point and kind.is_floating_point)
    )


def _problem(rest: _Rest, strict: bool, lost: set[str]) -> str | None:
    if lost:
        return f"it is older than one that turned out damaged, and does not have {sorted(lost)[:8]} of that one"
    words = ("missing in the checkpoint", "of another shape or kind there", "unexpected")
    said = [f"{word} {list(names[:8])}" for word, names in zip(words, rest, strict=True) if names]
    return ", ".join(said) if strict and said else None


def _fill(
    root: str,
    attempt: str,
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    pairs: list[tuple[str, str]],
    group: dist.ProcessGroup | None,
) -> int:
    """The step that it is of. Raises as `load_state`."""
    values: dict[str, Any] = {}
    read: dict[str, torch.Tensor] = {}  # by stored names: what is tied there may not be tied here
    taken: set[int] = set()
    for here, there in pairs:
        it = saved[there]
        if it.stored in read:
            continue
        direct = live[here].dtype == TYPES[it.dtype] and id(live[here]) not in taken
        taken.add(id(live[here]))
        read[it.stored] = live[here] if direct else torch.empty_like(live[here].detach(), dtype=TYPES[it.dtype])
        inner = values
        for key in it.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[it.path[-1]] = read[it.stored]
    got = load_state(root, StateDict(values), attempt=attempt, process_group=group)
    with torch.no_grad():
        for here, there in pairs:
            source = read[saved[there].stored]
            if source is not live[here]:
                live[here].copy_(source)
    return got.step
