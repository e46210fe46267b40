"""What a checkpoint holds: model, optimizer, other objects with a state_dict, and the trainer's own values.

A program makes a `State` and passes it to `Manager`; the Manager and a restore call `tensors`, `targets` and `adopt`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from hyperpod_kit.checkpoint.codec import codec, sharding
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout
from hyperpod_kit.checkpoint.state import (
    comm_hooks,
    fsdp1,
    inplace,
    modules,
    optimizer,
    optimizer_state,
    per_rank_paths,
    randomness,
)
from hyperpod_kit.checkpoint.state.fitting import Filling
from hyperpod_kit.checkpoint.state.tensors import Collector, StateTensors, TensorPiece, TensorUse, WalkCache
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.renamed import renamed_fields


class _Apart(NamedTuple):
    """Which of the model's tensors are not like the others: buffers that DDP sends around, and whether what is frozen
    is saved."""

    sent: frozenset[str]
    frozen: bool

    def excluded_names(self, model: torch.nn.Module) -> frozenset[str]:
        """Return the names of the parameters that are not saved."""
        if self.frozen:
            return frozenset()
        return modules.frozen_parameter_names(model)


class _Parts(NamedTuple):
    """What a State consists of, as it is at the beginning of a walk: each look goes through all modules."""

    objects: dict[str, Any]
    optimizers: dict[str, torch.optim.Optimizer]
    names: modules.ParameterNames
    is_fsdp1: bool


@renamed_fields(forget="clear_cache", wants="required_names")
class State:
    """The objects to save and to restore in place.

    What plain tensors of one name hold is taken to be the same on all ranks, and is compared (see `compare` of
    Manager), except for what `own` names. What each rank has for itself, a rank that the saving run did not have gets
    from rank 0.

    Args:
        model: The module: plain, under DDP, FSDP2 (`fully_shard`), HSDP, tensor parallel, or FSDP1. None: no model.
        optimizer: The model's optimizer. None: no optimizer.
        extra: A dict of numbers, strings, bytes, lists, tuples, dicts and tensors, each rank its own. A restore
            replaces what is in it, and fills the tensors that are there in place. None: an empty one, as the attribute
            `extra`.
        rng: Whether the random number generators are part of it: torch's (CPU, and CUDA where it is in use), Python's,
            and numpy's where it is imported. Default: yes.
        full: Whether rank 0 saves whole tensors, gathered by a collective in each save; of a sharded model such a
            checkpoint is restored from storage only. False: each rank saves its part.
        frozen: Whether the model's parameters that require no gradient are saved. False: they are left out, and must
            come from elsewhere: the base of an adapter.
        own: The tensors that each rank has for itself: names as the checkpoint has them, with wildcards
            (`model.experts.*`), or modules, parameters and optimizers.
        **objects: Other objects with `state_dict` and `load_state_dict`, by names of your choice: modules and
            optimizers (an average of the weights, a second optimizer) are shared by the ranks like the model, all
            others (a scheduler, a loader) are each rank's own.

    Raises:
        TypeError: An argument is of none of these kinds.
        ValueError: `own` names what is not in the state.

    Example:
        import torch
        from hyperpod_kit.checkpoint import State

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        state = State(model, optimizer, schedule=schedule, extra={"tokens": 0})
        state.extra["tokens"] += 4096
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        extra: dict[str, Any] | None = None,
        rng: bool = True,
        full: bool = False,
        frozen: bool = True,
        own: Iterable[str | torch.nn.Module | torch.Tensor | torch.optim.Optimizer] = (),
        **objects: Any,
    ) -> None:
        _refuse_other_kinds(model, optimizer, extra, objects)
        self.model: torch.nn.Module | None = _unwrap(model)
        sent: frozenset[str] = frozenset()
        if model is not None and self.model:
            sent = names_of_broadcast_buffers(model, self.model)
        self._apart = _Apart(sent, frozen)
        self.optimizer: torch.optim.Optimizer | None = _unwrap(optimizer)
        if extra is not None:
            self.extra: dict[str, Any] = extra
        else:
            self.extra = {}
        self.rng = rng
        self.full = full
        given = {name: _unwrap(thing) for name, thing in objects.items()}
        self._objects = comm_hooks.StateObjects(given, model)
        things = {
            "model": self.model,
            "optimizer": self.optimizer,
            **{f"objects.{name}": thing for name, thing in given.items()},
        }
        self._owned = per_rank_paths.PerRankPaths([own] if isinstance(own, str) else map(_unwrap, own), things)
        self._cache = WalkCache()
        self._filling = Filling()
        self._generators: dict[str, Any] | None = None
        self._sharded1: fsdp1.Dicts | None = None

    @property
    def objects(self) -> dict[str, Any]:
        """The objects that were given by name, and those that DDP's communication hooks keep."""
        return self._objects.all_objects()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers of this state that take hooks on their step, at which the weights change."""
        # What is no Optimizer and drives one may change the weights before that one's hooks hear of the step.
        things = [
            thing for thing in self._optimizers(self.objects).values() if isinstance(thing, torch.optim.Optimizer)
        ]
        steppers = [optimizer.hookable_optimizer(thing) for thing in things]
        return [thing for thing in steppers if thing is not None]

    @property
    def is_complete(self) -> bool:
        """Whether every tensor exists, so that one rank may call `tensors` by itself; False where it is a collective
        (FSDP1, `full`)."""
        return not self._is_walk_collective() and not self._optimizers_without_state()

    def when_complete(self, then: Callable[[State], None]) -> None:
        """Call `then(self)` as soon as every tensor exists: now, or after the step that makes the optimizer's state.

        It is not called at all where `tensors` is a collective (FSDP1, `full`): ranks need not get here together.

        Args:
            then: Called once, with this state.
        """
        if self._is_walk_collective():
            return
        waiting = self._optimizers_without_state()
        if not waiting:
            then(self)
            return

        calls = [then]

        def first(*_: Any) -> None:
            # It stays, empty: torch goes through the hooks while it calls them, and the program may have others.
            if calls:
                calls.pop()(self)

        waiting[0].register_step_post_hook(first)

    def _is_walk_collective(self) -> bool:
        return self.full or self._is_fsdp1()

    def _is_fsdp1(self) -> bool:
        return self.model is not None and fsdp1.is_used(self.model)

    def _find_parts(self) -> _Parts:
        objects = self.objects
        names = modules.NO_PARAMETERS
        if self.model is not None:
            names = modules.parameter_names(self.model)
        return _Parts(objects, self._optimizers(objects), names, self._is_fsdp1())

    def _optimizers_without_state(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that make their state in their first step."""
        return [thing for thing in self.optimizers if not thing.state]

    # --- saving -------------------------------------------------------------------------------------------------

    def check(self, ranks: Ranks) -> None:
        """Check before there is a save that a checkpoint can hold this state. No collective.

        Objects that can be iterated are left out: the `state_dict` of a loader starts its workers. So are the model and
        the optimizer of FSDP1, which are torch's own dicts.

        Args:
            ranks: The ranks of the run.

        Raises:
            StateNotSerializable: A value is one that no checkpoint can hold.
        """
        cache = WalkCache() if self.full else self._cache
        collector = Collector(ranks, cache, full=self.full, gather=False, owned=self._owned)
        parts = self._find_parts()
        if not parts.is_fsdp1:
            self._encode_shared_parts(collector, parts)
        plain_objects = {name: thing for name, thing in parts.objects.items() if not hasattr(thing, "__iter__")}
        self._encode_per_rank_parts(collector, plain_objects, ranks.rank)

    def warn_of_modules_without_tensors(self) -> None:
        """Warn (RuntimeWarning) of each object that is a module and saves nothing."""
        for name, thing in self.objects.items():
            if isinstance(thing, torch.nn.Module):
                _warn_if_nothing_is_saved(name, thing)

    def tensors(self, ranks: Ranks) -> StateTensors:
        """Collect this rank's state as live tensors and JSON.

        No collective, except for FSDP1 (torch gathers its state dict) and with `full=True`.

        Args:
            ranks: The ranks of the run.

        Returns:
            The tensors, and the tree of everything else.

        Raises:
            StateNotSerializable: A value is one that no checkpoint can hold.
        """
        collector = Collector(ranks, self._cache, full=self.full, owned=self._owned)
        parts = self._find_parts()
        tree, optimizer_classes = self._encode_shared_parts(collector, parts)
        values = self._encode_per_rank_parts(collector, parts.objects, ranks.rank)
        tree.update(values)
        tree["classes"] = optimizer_classes
        if self.rng:
            prefix = f"rank.{ranks.rank:05d}"
            tree["rng"] = codec.encode(
                randomness.capture(), f"{prefix}.rng", partial(_record_per_rank_tensor, collector, prefix)
            )
        shard_keys = [*values, "rng"]
        if ranks.rank == 0:
            shard_keys = []  # extra.json has what is rank 0's own
        return collector.finish_and_add_shared_names(tree, shard_keys)

    def _encode_per_rank_parts(self, collector: Collector, objects: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """Record and encode what each rank has for itself: of objects that are neither modules nor
        optimizers, and `extra`."""
        prefix = f"rank.{rank:05d}"
        take_per_rank = partial(_record_per_rank_tensor, collector, prefix)
        values = {
            f"objects.{name}": codec.encode(thing.state_dict(), f"{prefix}.objects.{name}", take_per_rank, classes=True)
            for name, thing in objects.items()
            if not _is_module_or_optimizer(thing)
        }
        values["extra"] = codec.encode(self.extra, f"{prefix}.extra", take_per_rank, classes=True)
        return values

    @torch.no_grad()  # once: a switch for each of many DTensors would be felt
    def _encode_shared_parts(self, collector: Collector, parts: _Parts) -> tuple[dict[str, Any], dict[str, str]]:
        """Record and encode model, optimizer, and objects of those kinds; return the tree, and the class of
        each optimizer by its path."""
        tree: dict[str, Any] = {}
        optimizer_classes: dict[str, str] = {}
        fqns: dict[int, str] = {}
        if self.model is not None and parts.is_fsdp1:
            self._sharded1 = fsdp1.Dicts(self.model, self.optimizer)
            tree["model"] = codec.encode(self._sharded1.model, "model", collector.add_tensor)
            if self.optimizer is not None:
                tree["optimizer"] = codec.encode(self._sharded1.optimizer, "optimizer", collector.add_tensor)
        elif self.model is not None:
            fqns = parts.names.first_by_id
            tree["model"] = modules.encode(
                self.model,
                "model",
                collector,
                parts.names.all_names,
                broadcast_names=self._apart.sent,
                excluded_names=self._apart.excluded_names(self.model),
            )
        if self.optimizer is not None and "optimizer" not in tree:
            tree["optimizer"] = optimizer.encode(self.optimizer, "optimizer", collector, fqns)
        if self.optimizer is not None:
            optimizer_classes["optimizer"] = optimizer.class_of(self.optimizer)
        for name, thing in parts.objects.items():
            path = f"objects.{name}"
            if isinstance(thing, torch.nn.Module):
                tree[path] = modules.encode(
                    thing, path, collector, modules.parameter_names(thing).all_names, use=TensorUse.VALUE
                )
            elif isinstance(thing, torch.optim.Optimizer):
                tree[path] = optimizer.encode(thing, path, collector, fqns)
                optimizer_classes[path] = optimizer.class_of(thing)
        return tree, optimizer_classes

    # --- restoring ----------------------------------------------------------------------------------------------

    def targets(self, ranks: Ranks, tree: Mapping[str, Any]) -> StateTensors:
        """Collect the live tensors that a restore of `tree` fills in place.

        They are those of the model, of the optimizer, whose state is made first, and of `extra`. Tensors of `tree`
        without a target (`codec.tensor_names` less the pieces' names) are given to `adopt`. Call `withdraw` when
        nothing comes of the restore.

        Args:
            ranks: The ranks of the run.
            tree: What the checkpoint holds beside the bytes of tensors.

        Returns:
            The tensors to fill, under the names that the checkpoint has for them.

        Raises:
            CheckpointError: The state does not fit; it has the missing and the unexpected names.
        """
        parts = self._find_parts()
        self._require_saved_parts(parts, tree)
        sharded1, fqns = parts.is_fsdp1, parts.names.first_by_id
        classes = tree.get("classes", {})
        for path, thing in parts.optimizers.items():
            described = codec.RECORDS in tree and classes.get(path) == optimizer.class_of(thing)
            if not sharded1 and optimizer_state.make_missing_state(
                thing, tree[path], fqns, records_have_type_and_shape=described
            ):
                self._filling.made.append(thing)
        # With `full` the pieces of a save are whole tensors, these are not; else the first save finds them known.
        collector = Collector(
            ranks, WalkCache() if self.full else self._cache, full=self.full, gather=False, owned=self._owned
        )
        live, live_optimizer_classes = self._encode_shared_parts(collector, parts)
        loaders = {}
        optimizers: dict[str, torch.optim.Optimizer] = {}
        if not sharded1:
            loaders, optimizers = self._module_loaders(parts), parts.optimizers
        for path in live:
            if path not in live_optimizer_classes:
                _require_same_names(path, live[path], tree, loaders.get(path))
        _warn_of_other_optimizer_classes(parts.optimizers, tree)
        self._filling.replace_misfits_and_match_subclasses(tree, collector, loaders, optimizers, fqns)
        inplace.collect_fill_targets(self.extra, tree["extra"], "extra", collector, self._filling)
        return self._finish_under_saved_names(collector, live, tree)

    def _finish_under_saved_names(
        self, collector: Collector, live: dict[str, Any], tree: Mapping[str, Any]
    ) -> StateTensors:
        """Return the tensors that `collector` took for `live`, under the names that `tree` has for them,
        and keep them as filled."""
        saved_names = set(codec.tensor_names(dict(tree)))
        # State that the checkpoint does not have (saved before the first step) is dropped by `adopt`.
        names = {}
        if any(name not in saved_names for name in collector.names):
            names = codec.differing_saved_names(live, tree)
        collector.drop([name for name in collector.names if names.get(name, name) not in saved_names])
        tensors = collector.finish_and_add_shared_names(live)
        pieces = tuple(
            _rename_piece(piece, names.get(piece.spec.name, piece.spec.name))
            for piece in tensors.pieces
            if names.get(piece.spec.name, piece.spec.name) in saved_names
        )
        _require_distinct_names(pieces)
        # A sharded tensor of which no part lies here needs no bytes, but it is live all the same.
        absent = tuple(name for name in tensors.absent if name in saved_names)
        live_by_name = {
            names.get(name, name): collector.source(name)
            for name in (*(piece.spec.name for piece in tensors.pieces), *absent)
            if names.get(name, name) in saved_names
        }
        self._filling.live = live_by_name
        return tensors._replace(pieces=pieces, absent=absent)

    def required_names(self, tree: Mapping[str, Any]) -> set[str]:
        """Name the tensors of `tree` that are filled or given to `adopt`; the others need not be read.

        Args:
            tree: What the checkpoint holds beside the bytes of tensors.

        Returns:
            The names.
        """
        parts = {"model": self.model, "optimizer": self.optimizer, "rng": self.rng or None, "extra": self.extra}
        parts.update((f"objects.{name}", thing) for name, thing in self.objects.items())
        given = [part for part, thing in parts.items() if thing is not None]
        return {name for part in given for name in codec.tensor_names(tree.get(part))}

    def names(self, ranks: Ranks) -> dict[str, TensorLayout]:
        """Name the tensors that this rank holds of what ranks share, and their layouts.

        Of an optimizer, whose state may have yet to be made, it is where the parameters are.

        Args:
            ranks: The ranks of the run.

        Returns:
            Name and layout of each; nothing where a walk is a collective (FSDP1, `full`).

        Raises:
            StateNotSerializable: A value is one that no checkpoint can hold.
        """
        if self._is_walk_collective():
            return {}
        collector = Collector(ranks, WalkCache(), owned=self._owned)
        parts = self._find_parts()
        things = {"model": self.model, **{f"objects.{name}": thing for name, thing in parts.objects.items()}}
        with torch.no_grad():
            for path, thing in things.items():
                if isinstance(thing, torch.nn.Module):
                    left_out: frozenset[str] = frozenset()
                    if path == "model":
                        left_out = self._apart.excluded_names(thing)
                    modules.encode(
                        thing,
                        path,
                        collector,
                        modules.parameter_names(thing).all_names,
                        excluded_names=left_out,
                    )
        if ranks.world > 1:
            self._encode_per_rank_parts(collector, {}, ranks.rank)  # what of it is divided has a name that ranks share
        layouts = collector.layouts()
        for path, optimizer_ in parts.optimizers.items():
            layouts[path] = TensorLayout("")
            for name, param in optimizer.parameters_of(optimizer_, parts.names.first_by_id):
                state = f"{path}.state.{name}"
                if state not in self._owned:
                    layouts[state] = _optimizer_state_layout(param)
        return layouts

    def clear_cache(self) -> None:
        """Forget earlier walks, because which rank holds what has changed."""
        self._cache = WalkCache()

    def _require_saved_parts(self, parts: _Parts, tree: Mapping[str, Any]) -> None:
        """Raise CheckpointError for a part of the state that the checkpoint lacks or an optimizer with
        other parameters, before anything is made."""
        paths = {f"objects.{name}" for name in parts.objects}
        paths.update(name for name in ("model", "optimizer") if getattr(self, name) is not None)
        missing_hook_states = comm_hooks.warn_and_return_missing_hook_states(set(parts.objects), tree)
        missing = sorted(paths.difference(tree) - missing_hook_states)
        if missing:
            saved_parts = sorted(path for path in tree if path in ("model", "optimizer") or path.startswith("objects."))
            raise CheckpointError(
                f"the checkpoint has no {', '.join(missing)}; it has {', '.join(saved_parts) or 'neither'}",
                hint="leave out of State what was not saved, restore, then create another State",
            )
        for path, thing in parts.optimizers.items():
            if not (path == "optimizer" and parts.is_fsdp1):
                optimizer.require_same_parameters(thing, tree[path], parts.names.first_by_id, path)

    def withdraw(self) -> None:
        """Remove the state that `targets` made for optimizers, because nothing was restored."""
        self._filling.clear_made_optimizer_state()
        self._filling, self._sharded1 = Filling(), None

    def adopt(self, tree: Mapping[str, Any], loaded: Mapping[str, torch.Tensor]) -> None:
        """Take over everything else of `tree`, now that the targets are filled.

        It raises what a module's or an object's own loading code raises.

        Args:
            tree: What the checkpoint holds beside the bytes of tensors.
            loaded: The tensors without a target, by name. They are kept: do not write to them again.
        """

        filling = self._filling
        live, wholes = filling.live, filling.wholes
        filling.assign_loaded_parts(loaded)

        def tensor(name: str) -> torch.Tensor:
            if name in live:
                return live[name]
            return loaded[name]

        if self.model is not None and self._sharded1 is not None:
            self._sharded1.load_filled_dicts(tree, tensor)
        parts = self._find_parts()
        loaders = self._module_loaders(parts)
        if "model" in loaders and self._sharded1 is None:
            loaders["model"].load_unfilled_state(tree["model"], tensor, wholes, filling.fresh.keys())
        for path, thing in parts.optimizers.items():
            if not (path == "optimizer" and self._sharded1 is not None):
                optimizer_state.Adoption(
                    thing, tree[path], parts.names.first_by_id, live=live, wholes=wholes, tensor=loaded.__getitem__
                ).load_into_optimizer()
        for name, other in parts.objects.items():
            path = f"objects.{name}"
            if path in loaders:
                loaders[path].load_unfilled_state(tree[path], tensor, wholes, filling.fresh.keys())
            elif not _is_module_or_optimizer(other) and path in tree:
                other.load_state_dict(codec.decode(tree[path], loaded.__getitem__))
        inplace.update_in_place(self.extra, tree["extra"], tensor)
        self._keep_generator_states(tree, loaded)
        self.restore_rng()
        self._filling, self._sharded1 = Filling(), None

    def _keep_generator_states(self, tree: Mapping[str, Any], loaded: Mapping[str, torch.Tensor]) -> None:
        """Keep the states of the generators where they are restored and the checkpoint has them."""
        if self.rng and "rng" in tree:
            self._generators = codec.decode(tree["rng"], loaded.__getitem__)
        else:
            self._generators = None

    def restore_rng(self) -> None:
        """Set the random number generators once more to where the last restore set them.

        Call it last before the first step in a program that draws numbers after its restore, as the making of a
        DataLoader's iterator does. It does nothing where no generators were restored.

        Example:
            With a `manager`, a `state` and `batches`, a DataLoader of torch's:

                manager.restore(state)
                iterator = iter(batches)
                state.restore_rng()
        """
        if self._generators is not None:
            randomness.restore(self._generators)

    def _module_loaders(self, parts: _Parts) -> dict[str, modules.Loader]:
        loaders = {
            f"objects.{name}": modules.Loader(thing, modules.parameter_names(thing), use=TensorUse.VALUE)
            for name, thing in parts.objects.items()
            if isinstance(thing, torch.nn.Module)
        }
        if self.model is not None:
            loaders["model"] = modules.Loader(self.model, parts.names, broadcast_names=self._apart.sent)
        return loaders

    def _optimizers(self, objects: Mapping[str, Any]) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by path; `objects` are those of the state. The one that is given as the
        optimizer need not be of torch's class: it may drive one."""
        others = {
            f"objects.{name}": thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)
        }
        if self.optimizer is None:
            return others
        return {"optimizer": self.optimizer, **others}


def _unwrap(thing: Any) -> Any:
    """Return what is inside wrappers that hold nothing to be saved."""
    if isinstance(thing, torch.nn.Module):
        return modules.unwrap_ddp_and_compile(thing)
    if isinstance(thing, torch.optim.Optimizer):
        return optimizer.unwrap_stateless_wrappers(thing)
    return thing


def _refuse_other_kinds(model: object, optimizer: object, extra: object, objects: Mapping[str, object]) -> None:
    """Raise TypeError for a model, optimizer, extra or object of another kind: at the construction and
    not at the first save."""

    def kind(thing: object) -> str:
        return f"{type(thing).__module__}.{type(thing).__qualname__}"

    more = "one is `{0}`, each other one has a name of its own: State(..., {1}=...)"
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"State: model is a {kind(model)}, expected a torch.nn.Module; of several, "
            + more.format("model", "discriminator")
        )
    if optimizer is not None and not all(
        hasattr(optimizer, name) for name in ("state_dict", "load_state_dict", "param_groups")
    ):
        raise TypeError(
            f"State: optimizer is a {kind(optimizer)}, expected a torch.optim.Optimizer; of several, "
            + more.format("optimizer", "second")
        )
    if extra is not None and not isinstance(extra, dict):
        raise TypeError(f"State: extra is a {kind(extra)}, expected a dict: extra={{'value': ...}}")
    for name, thing in objects.items():
        if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
            raise TypeError(
                f"State: {name} is a {kind(thing)}, expected an object with state_dict and "
                f"load_state_dict; a value goes into extra={{{name!r}: ...}}"
            )


def _warn_if_nothing_is_saved(name: str, module: torch.nn.Module) -> None:
    held_back = modules.nonpersistent_names_if_stateless(module)
    if held_back:
        warnings.warn(
            f"nothing of {name}, a {type(module).__name__}, is saved: its {', '.join(held_back[:3])} are declared as "
            "not persistent, and its state_dict() is empty; a metric of torchmetrics is saved after "
            f"{name}.persistent(True)",
            RuntimeWarning,
            stacklevel=4,
        )


def _record_per_rank_tensor(collector: Collector, prefix: str, path: str, tensor: torch.Tensor) -> str | dict[str, Any]:
    """Record a tensor that a rank has for itself. All ranks have their part of a sharded one: its name
    is no rank's."""
    sharded = sharding.is_sharded(tensor)
    use = TensorUse.PER_RANK
    if sharded:
        use = TensorUse.VALUE
    taken = collector.add_tensor(path[len(prefix) + 1 :] if sharded else path, tensor, use)
    gradient = 0
    if not sharded:
        gradient = codec.gradient_and_parameter_code(tensor)
    if not gradient or not isinstance(taken, str):
        return taken
    return {"$": "tensor", "name": taken, codec.GRADIENT: gradient}


def _warn_of_other_optimizer_classes(optimizers: Mapping[str, torch.optim.Optimizer], tree: Mapping[str, Any]) -> None:
    saved = tree.get("classes", {})
    for path, thing in optimizers.items():
        warning = optimizer.describe_class_change_or_refuse_state_loss(thing, tree[path], saved.get(path), path)
        if warning is not None:
            warnings.warn(warning, RuntimeWarning, stacklevel=2)


def _optimizer_state_layout(param: torch.Tensor) -> TensorLayout:
    """Return on which mesh an optimizer's state of a parameter is, whatever its kind."""
    if sharding.is_dtensor(param):
        return sharding.layout_of(param)._replace(kind="")
    return TensorLayout("")


def _is_module_or_optimizer(thing: object) -> bool:
    return isinstance(thing, (torch.nn.Module, torch.optim.Optimizer))


def _rename_piece(piece: TensorPiece, name: str) -> TensorPiece:
    """Return the piece under the name that it has in the checkpoint: that of another rank's own, say."""
    if piece.spec.name == name:
        return piece
    return replace(piece, spec=piece.spec._replace(name=name))


def _require_distinct_names(pieces: Iterable[TensorPiece]) -> None:
    """Raise CheckpointError where two pieces have one name."""
    names: set[str] = set()
    for piece in pieces:
        if piece.spec.name in names:
            raise CheckpointError(
                f"{piece.spec.name} is one tensor in the checkpoint, and several in the program",
                hint="tie the tensors that were tied when they were saved",
            )
        names.add(piece.spec.name)


def _require_same_names(
    path: str, live: Mapping[str, Any], tree: Mapping[str, Any], loader: modules.Loader | None
) -> None:
    saved = tree[path]
    missing, unexpected = sorted(set(live) - set(saved)), sorted(set(saved) - set(live))
    if loader is not None:
        missing = [name for name in missing if not loader.has_custom_loading(name)]
        unexpected = [
            name for name in unexpected if not loader.has_custom_loading(name) and not loader.is_lazy_buffer(name)
        ]
    if missing or unexpected:
        raise CheckpointError(
            f"{path} does not fit: missing in the checkpoint {missing[:8]}, unexpected {unexpected[:8]}"
        )


# Buffers that DDP sends from rank 0 to all before each forward pass: until then ranks may hold others.


def names_of_broadcast_buffers(model: torch.nn.Module, unwrapped: torch.nn.Module) -> frozenset[str]:
    """Return the names in `unwrapped`, the model inside `model`'s wrappers, of the buffers that DDP
    sends from rank 0 before each forward pass."""
    names: set[str] = set()
    while model is not unwrapped:
        if isinstance(model, DDP):
            names |= _broadcast_names_of_ddp(model, "")
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    for name, module in unwrapped.named_modules():
        if isinstance(module, DDP):
            names |= _broadcast_names_of_ddp(module, f"{name}.module.")
    return frozenset(names)


def _broadcast_names_of_ddp(model: DDP, prefix: str) -> set[str]:
    if not (model.broadcast_buffers and model.require_forward_param_sync):
        return set()
    ignored = model.parameters_to_ignore
    return {prefix + name for name, _ in model.module.named_buffers(remove_duplicate=False) if name not in ignored}
