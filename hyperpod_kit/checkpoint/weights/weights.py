"""A model's weights out of a checkpoint that need not fit it: another head, other names, another type, fewer layers.

Which names fit is compared before a tensor is changed, and every byte is proved by `load_state`, which does the
reading: a tensor of another type is read into one of the checkpoint's type, and copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.codec import ambient, sharding
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.format.shard import ITEM_BYTES
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.checkpoint.restore import candidates
from hyperpod_kit.checkpoint.restore.loading import load_state
from hyperpod_kit.checkpoint.state import fsdp1, modules
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.checkpoint.weights import weight_sources
from hyperpod_kit.checkpoint.weights.weight_sources import ConvertedFrom, Match, SavedTensor, Sources
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.renamed import renamed_arguments, renamed_fields
from hyperpod_kit.untrusted.text import clean_one_line, counted, replace_unprintable


@renamed_fields(attempt="checkpoint_id")
@dataclass(frozen=True)
class LoadedWeights:
    """What `load_weights` did; `str()` of it is a report of a few lines.

    Attributes:
        checkpoint_id: The name of the checkpoint that was read.
        step: The step that it is of.
        loaded: The names of the model that were filled.
        missing: Names of the model that the checkpoint does not have.
        other: Names of the model that have another shape or kind of number in the checkpoint.
        unexpected: Names in the checkpoint that nothing of the model was filled from.
        rejected: Newer checkpoints, and why they were not taken.
        converted: Those in `loaded` whose numbers are of another type in the checkpoint, or that a function made.
        dropped: Names in the checkpoint that were left out on purpose.

    Example:
        With a `model` and the `root` of a run that has saved it:

            from hyperpod_kit.checkpoint import load_weights

            loaded = load_weights(root, model, strict=False)
            assert not loaded.missing, str(loaded)
    """

    checkpoint_id: str
    step: int
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    other: tuple[str, ...]
    unexpected: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...] = ()
    converted: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        lists = {
            "missing in the checkpoint": self.missing,
            "of another shape or kind in the checkpoint": self.other,
            "unexpected there": self.unexpected,
            "left out on purpose": self.dropped,
        }
        counts = f"{counted(len(self.loaded), 'tensor')} loaded, {len(self.converted)} converted"
        head = f"step {self.step} ({self.checkpoint_id}): {counts}"
        lines = [
            f"{len(names)} {label}: {', '.join(map(clean_one_line, names))}" for label, names in lists.items() if names
        ]
        passed = [
            f"passed over {checkpoint_id}: {replace_unprintable(reason)}" for checkpoint_id, reason in self.rejected
        ]
        return "\n".join([head, *lines, *passed])


@ambient.with_dispatch_modes_disabled
@renamed_arguments(attempt="checkpoint_id")
def load_weights(
    root: str | os.PathLike[str],
    model: torch.nn.Module,
    *,
    checkpoint_id: str | None = None,
    names: Sources | None = None,
    drop: Callable[[str], bool] | None = None,
    strict: bool = True,
    inside: str = "model",
    process_group: dist.ProcessGroup | None = None,
) -> LoadedWeights:
    """Fill the parameters and persistent buffers of `model` from a checkpoint, and read nothing else.

    Numbers of another floating type are converted. The model may be plain, under DDP, FSDP2 or tensor parallel, on any
    number of ranks; all ranks call it. What modules have besides tensors (`get_extra_state`), and their own loading
    hooks, are left alone. A tensor subclass such as a quantised weight is filled from one of the same class.

    Args:
        root: A directory, or `s3://BUCKET/PREFIX`.
        model: The module to fill in place.
        checkpoint_id: The name of a checkpoint, as `hyperpod-kit checkpoint ls` lists it. None: the newest one that can
            be proved.
        names: `names(name)` returns where what the model calls `name` comes from: a name in the checkpoint,
            `ConvertedFrom` several and a function, or None for what is not to be loaded. None: names are the same.
        drop: `drop(name)` returns whether a tensor of the checkpoint is left out on purpose, and so not `unexpected`.
            None: none is.
        strict: All others must be there, with their shapes, and none may be left over. False: the rest stays as it is,
            and the result names it: read `missing`.
        inside: Where the weights are: `model` for those of a State, `objects.NAME` for one of its objects, a path in
            the state dict for those of `Checkpoints` (`app.model`).
        process_group: The ranks that take part. None: all ranks, or this process alone where torch.distributed is not
            initialized.

    Returns:
        What was loaded and what was not.

    Raises:
        CheckpointError: Something does not fit, before anything is changed; the model is under FSDP1; or nothing lies
            `inside`.
        NoCheckpoint: Nothing was ever committed.
        NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
        DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
        StorageUnreadable: The newest checkpoint cannot be read from storage (an I/O error that lasts).
        TypeError: `names` returned something else.

    Example:
        With a `model` and the `root` of a run that has saved it:

            from hyperpod_kit.checkpoint import load_weights

            print(load_weights(root, model))
    """
    if fsdp1.is_used(model):
        raise CheckpointError(
            "the model is wrapped in FSDP1, which hides its tensors", hint="call load_weights before FSDP(model)"
        )
    live, where = _persistent_tensors(modules.unwrap_ddp_and_compile(model)), os.fspath(root)
    store_url = where
    if is_path(where):
        store_url = os.path.abspath(where)
    store, ranks = open_store(store_url), Ranks(process_group)
    candidates.require_same_checkpoint_id(ranks, checkpoint_id)
    rejected: list[tuple[str, str]] = []
    already_filled: set[str] = set()
    for name in (
        [checkpoint_id]
        if checkpoint_id is not None
        else _query_rank_zero_and_broadcast(ranks, partial(_committed_ids_newest_first, store))
    ):
        saved = _query_rank_zero_and_broadcast(
            ranks, partial(weight_sources.read_saved_tensors_or_problem, store, name, inside)
        )
        if isinstance(saved, str):
            rejected.append((name, saved))
            continue
        matched = weight_sources.match_tensors_by_name(live, saved, names, drop)
        _require_fit_on_all_ranks(ranks, name, matched, strict=strict, already_filled=already_filled)
        try:
            converted, other = read_convert_and_list_misfits(
                where, name, live, saved, matched.conversions, process_group
            )
            for here in other:
                del matched.conversions[here]
            matched.other += other
            _require_fit_on_all_ranks(ranks, name, matched, strict=strict, already_filled=already_filled)
            already_filled.update(matched.filled)
            step = _fill_model_and_return_step(where, name, live, saved, matched, converted, process_group)
        except NoValidCheckpoint as err:
            rejected += err.reasons
            continue
        return _build_loaded_weights(name, step, live, saved, matched, rejected)
    if rejected:
        raise NoValidCheckpoint(store.url, rejected)
    raise _query_rank_zero_and_broadcast(ranks, partial(selection.no_checkpoint_error, store, ()))


def _build_loaded_weights(
    checkpoint_id: str,
    step: int,
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    matched: Match,
    rejected: list[tuple[str, str]],
) -> LoadedWeights:
    other_types = [
        here for here, saved_name in matched.pairs if weight_sources.is_of_other_dtype(live[here], saved[saved_name])
    ]
    return LoadedWeights(
        checkpoint_id,
        step,
        loaded=tuple(matched.filled),
        missing=tuple(matched.missing),
        other=tuple(matched.other),
        unexpected=tuple(matched.unexpected),
        rejected=tuple(rejected),
        converted=(*other_types, *matched.conversions),
        dropped=tuple(matched.dropped),
    )


def _require_fit_on_all_ranks(
    ranks: Ranks, checkpoint_id: str, matched: Match, *, strict: bool, already_filled: set[str]
) -> None:
    """Raise CheckpointError, on all ranks, when the match does not fit on one. `already_filled`: what
    an earlier candidate filled."""
    lost = already_filled.difference(matched.filled)
    problem = None
    if strict:
        problem = matched.problem
    if lost:
        first = list(map(clean_one_line, sorted(lost)[:8]))
        problem = f"it is older than a damaged checkpoint, and lacks {first} of that checkpoint"
    for each in ranks.gather(problem):
        if each is not None:
            raise CheckpointError(
                f"{checkpoint_id}: {each}", hint=None if already_filled else "strict=False loads what fits"
            )


def _persistent_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers of the model, by the bare model's names; tied
    tensors under each of theirs."""
    saved_names = model.state_dict(keep_vars=True).keys()
    named_tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {modules.strip_wrapper_prefixes(name): tensor for name, tensor in named_tensors if name in saved_names}


def _query_rank_zero_and_broadcast(ranks: Ranks, query: Callable[[], Any]) -> Any:
    """Call `query` on rank 0 and return its result, or raise its error, on all ranks."""
    response: Any = None
    if ranks.rank == 0:
        try:
            response = query()
        except Exception as err:  # whatever it is, the other ranks would wait for this one
            response = err
    response = ranks.broadcast(response)
    if isinstance(response, Exception):
        raise response
    return response


def _committed_ids_newest_first(store: Store) -> list[str]:
    return [entry.checkpoint_id for entry in selection.iter_committed_not_excluded_newest_first(store)]


def _fill_model_and_return_step(
    root: str,
    checkpoint_id: str,
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    matched: Match,
    converted: Mapping[str, torch.Tensor],
    group: dist.ProcessGroup | None,
) -> int:
    """Read the matched tensors, convert their types and fill the model; return the checkpoint's step.
    Raises as `load_state`."""
    by_path: list[tuple[list[Any], torch.Tensor]] = []
    read: dict[str, torch.Tensor] = {}  # by stored names: what is tied there may not be tied here
    taken: set[int] = set()
    for here, saved_name in matched.pairs:
        it = saved[saved_name]
        if it.stored in read:
            continue
        same = bool(it.kind) or live[here].dtype == TYPES[it.dtype]
        direct = same and id(live[here]) not in taken
        taken.add(id(live[here]))
        read[it.stored] = (
            live[here] if direct else torch.empty_like(live[here].detach(), dtype=_dtype_to_read_into(it, live[here]))
        )
        by_path.append((it.path, read[it.stored]))
    got = load_state(root, StateDict(nest_by_path(by_path)), checkpoint_id=checkpoint_id, process_group=group)
    with torch.no_grad():
        for here, saved_name in matched.pairs:
            source = read[saved[saved_name].stored]
            if source is not live[here]:
                live[here].copy_(source)
        for here, part in converted.items():
            sharding.local(live[here]).copy_(part)
    return got.step


def _dtype_to_read_into(saved: SavedTensor, live: torch.Tensor) -> torch.dtype:
    if saved.kind:
        return live.dtype
    return TYPES[saved.dtype]


# Tensors of a model that a function makes of some in a checkpoint, made before anything of the model is changed.

_BATCH_BYTES = 1 << 30
"""Bytes of whole tensors of the checkpoint that are held at the same time."""


def read_convert_and_list_misfits(
    root: str,
    checkpoint_id: str,
    live: Mapping[str, torch.Tensor],
    saved: Mapping[str, SavedTensor],
    conversions: Mapping[str, ConvertedFrom],
    group: dist.ProcessGroup | None,
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Read the checkpoint's tensors that `conversions` need, apply the functions and return this
    rank's part of each result by the model's names, and the names whose result is of another shape
    or kind.

    A collective. Raises as `load_state`, CheckpointError on all ranks when a function raises on
    one.
    """
    ranks = Ranks(group)
    parts: dict[str, torch.Tensor] = {}
    misfits: list[str] = []
    for names in _batches(conversions, saved):
        full_tensors = _read_full_tensors(
            root, checkpoint_id, [saved[name] for here in names for name in conversions[here].names], group
        )
        failure: str | None = None
        for here in names:
            source = conversions[here]
            result = _apply_conversion(here, source, [full_tensors[saved[name].stored] for name in source.names])
            if isinstance(result, str):
                failure = failure or result
            elif not _has_same_shape_and_convertible_dtype(result, live[here]):
                misfits.append(here)
            else:
                parts[here] = _copy_local_part(here, live[here], result, ranks)
        for rank_failure in ranks.gather(failure):
            if rank_failure is not None:
                raise CheckpointError(f"{checkpoint_id}: {rank_failure}")
    return parts, misfits


def nest_by_path(values: list[tuple[list[Any], torch.Tensor]]) -> dict[str, Any]:
    """Return a tree of dicts with each tensor at the end of its path."""
    tree: dict[str, Any] = {}
    for path, tensor in values:
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = tensor
    return tree


def _batches(conversions: Mapping[str, ConvertedFrom], saved: Mapping[str, SavedTensor]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for here, source in conversions.items():
        batch.append(here)
        size += sum(_nbytes(saved[name]) for name in source.names)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _nbytes(saved: SavedTensor) -> int:
    size = ITEM_BYTES[saved.dtype]
    for extent in saved.shape:
        size *= extent
    return size


def _read_full_tensors(
    root: str, checkpoint_id: str, sources: Iterable[SavedTensor], group: dist.ProcessGroup | None
) -> dict[str, torch.Tensor]:
    """Read whole tensors into host memory and return them by stored name: tied ones are read once.
    Raises as `load_state`."""
    paths = {source.stored: source for source in sources}
    full_tensors = {
        stored: torch.empty(source.shape, dtype=TYPES[source.dtype], device="cpu") for stored, source in paths.items()
    }
    by_path = [(source.path, full_tensors[stored]) for stored, source in paths.items()]
    load_state(root, StateDict(nest_by_path(by_path)), checkpoint_id=checkpoint_id, process_group=group)
    return full_tensors


def _apply_conversion(name: str, source: ConvertedFrom, full_tensors: Sequence[torch.Tensor]) -> torch.Tensor | str:
    """Apply the conversion of `name` and return its tensor, or the reason why it made none: a rank
    that raised here would leave the others waiting."""
    try:
        with torch.no_grad():
            result = source.by(*full_tensors)
    except Exception as err:
        return f"{name} cannot be made of {list(source.names)}: {type(err).__name__}: {err}"
    if not isinstance(result, torch.Tensor):
        return f"{name} is made of {list(source.names)}: a {type(result).__name__}, expected a tensor"
    return result


def _has_same_shape_and_convertible_dtype(result: torch.Tensor, live: torch.Tensor) -> bool:
    return result.shape == live.shape and weight_sources.are_convertible_dtypes(live.dtype, result.dtype)


def _copy_local_part(name: str, live: torch.Tensor, full_tensor: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return a copy of the part of `full_tensor` that this rank holds."""
    if not sharding.is_sharded(live):
        return full_tensor.clone()
    local_part = sharding.locate_local_part(
        name, live, ranks, per_rank=False, full=sharding.Full(is_requested=False, gather=False)
    )
    if local_part is None:
        return full_tensor.new_empty(sharding.local(live).shape)
    part = full_tensor
    for dim, begin in enumerate(local_part.offsets):
        part = part.narrow(dim, begin, local_part.local.shape[dim])
    return part.clone()
