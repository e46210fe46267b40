"""Small jobs whose ranks hold other bytes, other names or other shapes under what looks alike."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Dict, List

from tests.distributed.sharded_job import equal


def _step(model: Any, optimizer: Any, number: int) -> None:
    """Gradients that each rank has of its own."""
    import torch

    for index, param in enumerate(model.parameters()):
        param.grad = torch.full_like(param, 0.1 * (number + 1) + index + int(os.environ["RANK"]))
    optimizer.step()


def _alike(model: Any, optimizer: Any, number: int) -> None:
    import torch

    for param in model.parameters():
        param.grad = torch.full_like(param, 0.1 * (number + 1))
    optimizer.step()


def _experts() -> Any:
    """Other experts under the same names, as hand-written expert parallelism has them."""
    import torch

    torch.manual_seed(int(os.environ["RANK"]))
    return torch.nn.Linear(8, 4)


def _net() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))


def _ddp(broadcast: bool) -> Any:
    import torch

    return torch.nn.parallel.DistributedDataParallel(_net(), broadcast_buffers=broadcast)


def _forward(model: Any, optimizer: Any, number: int) -> None:
    """A step of DDP: each rank's batch moves its own running statistics."""
    import torch

    generator = torch.Generator().manual_seed(100 * number + int(os.environ["RANK"]))
    optimizer.zero_grad()
    model(torch.randn(8, 8, generator=generator)).square().sum().backward()
    optimizer.step()


def _stage() -> Any:
    """A pipeline's stage, with names of its own."""
    import torch

    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = torch.nn.Module()
    model.add_module(f"stage{rank}", torch.nn.Linear(4 + rank, 3))
    return model


def _shapes() -> Any:
    """Stages of other shapes under the same names."""
    import torch

    return torch.nn.Linear(8 + 8 * int(os.environ["RANK"]), 4)


Step = Callable[[Any, Any, int], None]
KINDS: Dict[str, tuple[Callable[[], Any], Step]] = {
    "equal": (_net, _alike),
    "experts": (_experts, _alike),
    "local_sgd": (_net, _step),
    "stages": (_stage, _step),
    "shapes": (_shapes, _alike),
    "ddp": (lambda: _ddp(True), _forward),
    "ddp_buffers": (lambda: _ddp(False), _forward),
}


def _values(state: Any) -> List[Any]:
    import torch

    tensors = [value.detach().clone() for value in state.model.state_dict().values()]
    for values in state.optimizer.state_dict()["state"].values():
        tensors += [value.clone() for value in values.values() if isinstance(value, torch.Tensor)]
    return tensors


def differ(kind: str, root: str, how: Dict[str, Any]) -> Dict[str, Any]:
    """Three steps with a save after each; the handles' states and reasons."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State

    make, step = KINDS[kind]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    state, manager = State(model, optimizer), Manager(root, **how)
    manager.restore(state)
    handles = []
    for number in range(3):
        step(model, optimizer, number)
        handles.append(manager.save(number, state, on_busy="wait"))
        handles[-1].wait("durable", 60)
    closed = manager.close()
    return {
        "states": [handle.state for handle in handles],
        "reasons": [handle.reason for handle in handles],
        "closed": closed,
        "shm": sorted(name for name in os.listdir(os.environ["HPK_SHM_DIR"]) if ".img" in name),
    }


def diverge_after(root: str, equal_saves: int, every: int, saves: int) -> List[str]:
    """Ranks that hold the same for some saves and then do not; the states of all saves."""
    from hyperpod_kit.checkpoint import Manager, State

    model = _net()
    state, manager = State(model), Manager(root, compare=every, slots=2 + saves, keep=None)
    manager.restore(state)
    handles = []
    for number in range(saves):
        if number >= equal_saves:
            model[0].bias.data.fill_(float(os.environ["RANK"]))
        handles.append(manager.save(number, state))
        handles[-1].wait("durable", 60)
    manager.close()
    return [handle.state for handle in handles]


def killed_before_the_verdict(root: str) -> Dict[str, Any]:
    """A good save, then one whose ranks differ; the agents are stopped before they hear of it, and killed."""
    import torch.distributed as dist

    from hyperpod_kit.checkpoint import Manager, State

    rank = int(os.environ["RANK"])
    model = _net()
    state, manager = State(model), Manager(root)
    manager.restore(state)
    assert manager.save(0, state, on_busy="wait").wait("durable", 60)
    os.kill(manager._agent.pid, signal.SIGSTOP)
    dist.barrier()
    model[0].bias.data.fill_(float(rank))
    said = manager.save(1, state, on_busy="wait").state
    dist.barrier()
    manager._agent.tries = 0  # nobody takes its place
    os.kill(manager._agent.pid, signal.SIGKILL)
    assert manager._agent.wait_exit(20)
    return {"state": said}


def restore_plain(root: str) -> Dict[str, Any]:
    from hyperpod_kit.checkpoint import Manager, State

    model = _net()
    good = [value.clone() for value in model.state_dict().values()]
    for value in model.parameters():
        value.data.fill_(9.0)
    state, manager = State(model), Manager(root)
    got = manager.restore(state)
    assert manager.close()
    return {
        "got": type(got).__name__,
        "step": getattr(got, "step", None),
        "rejected": list(got.rejected),
        "equal": all(equal(a, b) for a, b in zip(good, model.state_dict().values())),
    }


def history(kind: str, root: str, do: str) -> Dict[str, Any]:
    """`save`: train beside a metric whose list of tensors has grown to five or shrunk to one, and commit. `restore`:
    from a fresh start, whose list has two. What this rank then holds."""
    import torch

    from hyperpod_kit.checkpoint import Manager, State
    from tests.distributed import sharded_job

    class Metric(torch.nn.Module):
        """As torchmetrics keeps its lists: a name for each tensor, and loading code of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.values = [torch.zeros(3), torch.zeros(3)]

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination.update({f"{prefix}values.{n}": value for n, value in enumerate(self.values)})

        def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
            names = sorted(name for name in state_dict if name.startswith(f"{prefix}values."))
            self.values = [state_dict[name] for name in names]

    torch.manual_seed(0 if do == "save" else 99)
    model, optimizer = sharded_job.build("fsdp2")
    metric = Metric()
    state, manager = State(model, optimizer, metric=metric), Manager(root)
    got = manager.restore(state)
    if do == "save":
        for number in range(2):
            sharded_job.step(model, optimizer, number)
        sizes = range(3, 8) if kind == "grown" else [40]
        metric.values = [torch.full((size,), float(size)) for size in sizes]
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)
    answer = {
        "got": type(got).__name__,
        "rejected": list(getattr(got, "rejected", ())),
        "metric": [value.tolist() for value in metric.values],
        "holds": sharded_job.holds(model, optimizer),
    }
    if do != "save":
        metric.values[0] += 1.0
        assert manager.save(2, state, on_busy="wait").wait("durable", 60)
    assert manager.close()
    return answer
