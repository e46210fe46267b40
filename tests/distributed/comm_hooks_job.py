"""A model under DDP whose gradients PowerSGD compresses: what the hook keeps decides about the losses that follow."""

from __future__ import annotations

import os
from typing import Any

import torch

SAVED_STEP = 5
STEPS = 9
WARM_UP = 3


class CountingState:
    """The state of a hook of one's own, with tensors and without code to load it."""

    def __init__(self) -> None:
        self.errors = {0: torch.zeros(3)}


class KeptState(CountingState):
    def state_dict(self) -> dict[str, Any]:
        return {"errors": self.errors}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.errors = values["errors"]


def _build(seed: int) -> tuple[Any, Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(seed)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), (state, powerSGD_hook.powerSGD_hook)


def _step(model: Any, optimizer: Any, number: int) -> str:
    rank = int(os.environ["RANK"])
    data = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * number + rank))
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach()).hex()


def train(root: str, warm_up: int = 0, saved: bool = True) -> dict[str, Any]:
    """Three steps after the save, of the run that goes on or of the one that was restored. `warm_up`: so many passes
    before the restore; DDP makes other buckets once it has seen the order of the gradients."""
    import warnings

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.checkpoint.state import comm_hooks

    if not saved:  # as it was before hooks were saved
        comm_hooks.hook_states = lambda model: {}
    model, optimizer, (hook_state, hook) = _build(0)
    state = State(model, optimizer)
    model.register_comm_hook(hook_state, hook)  # later than the State is made
    for _ in range(warm_up):
        model(torch.randn(4, 64)).sum().backward()
    with Manager(root) as manager, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = manager.restore(state)
        losses = {}
        for step in range(resumed.next_step, STEPS):
            losses[str(step)] = _step(model, optimizer, step)
            if step == SAVED_STEP and not resumed.next_step:
                assert manager.save(step, state, on_busy="wait").wait("durable", 60)
        return {
            "losses": {step: loss for step, loss in losses.items() if int(step) > SAVED_STEP},
            "from": resumed.next_step,
            "iter": hook_state.iter,
            "errors": sorted(hook_state.error_dict),
            "begins anew": any("starts with an empty state" in str(warning.message) for warning in caught),
        }


def errors_after_restore(root: str) -> dict[str, Any]:
    from hyperpod_kit.checkpoint import Manager, State

    model, optimizer, (hook_state, hook) = _build(3)
    model.register_comm_hook(hook_state, hook)
    for _ in range(WARM_UP):
        model(torch.randn(4, 64)).sum().backward()
    with Manager(root) as manager:
        manager.restore(State(model, optimizer))
        return {
            "iter": hook_state.iter,
            "errors": sorted(hook_state.error_dict),
            "warm start": sorted(hook_state.q_memory_dict),
        }


def without_state_in_checkpoint(root: str) -> list[str]:
    """A checkpoint that was made before hooks were saved."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors_after_restore(root)
    return [str(warning.message) for warning in caught if "communication hooks" in str(warning.message)]


def own_state(root: str, kept: bool) -> str:
    """A hook of one's own: refused by name, or kept."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.errors import StateNotSerializable

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    own = KeptState() if kept else CountingState()
    world: Any = torch.distributed.group.WORLD
    model.register_comm_hook(own, lambda state, bucket: default_hooks.allreduce_hook(world, bucket))
    try:
        with Manager(root) as manager:
            manager.restore(State(model))
            own.errors[0].fill_(7.0)
            assert manager.save(1, State(model), on_busy="wait").wait("durable", 60)
            own.errors[0].fill_(0.0)
            manager.restore(State(model))
            return str(own.errors[0].tolist())
    except StateNotSerializable as err:
        return f"{err} | {err.hint}"
