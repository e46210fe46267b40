"""Loops as people have them on a GPU: from a checkpoint they go on bit for bit as if nobody had stopped them."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from hyperpod_kit.checkpoint import Restored

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, State  # noqa: E402
from tests.gpu.low_precision import plain_parts  # noqa: E402

STEPS, SAVED = 6, 3


class Loop:
    """A model, its optimizer and whatever else its training keeps; `step` is one update."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = self.made().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.state = State(self.model, self.optimizer, **self.more())

    def made(self) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

    def more(self) -> dict[str, Any]:
        return {}

    def step(self, number: int) -> None:
        batch = torch.randn(32, 64, generator=torch.Generator("cpu").manual_seed(number), device="cpu").cuda()
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loss(self, batch: Any) -> Any:
        return self.model(batch).square().mean()

    def holds(self) -> list[Any]:
        found = [value.detach().clone() for value in self.model.state_dict().values()]
        for values in self.optimizer.state_dict()["state"].values():
            tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
            found += [part.clone() for value in tensors for part in plain_parts(value)]
        return found


class Capturable(Loop):
    """Steps are counted on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, capturable=True)
        self.state = State(self.model, self.optimizer)


class Momentum(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, foreach=True)
        self.state = State(self.model, self.optimizer)


class Dropout(Loop):
    """Draws from the device's own random numbers."""

    def made(self) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(0.5), torch.nn.Linear(256, 64))


class Scaled(Loop):
    """Half precision with a gradient scaler, which begins too high and learns."""

    def more(self) -> dict[str, Any]:
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=2)
        return {"scaler": self.scaler}

    def step(self, number: int) -> None:
        batch = torch.randn(32, 64, generator=torch.Generator("cpu").manual_seed(number), device="cpu").cuda()
        with torch.autocast("cuda", torch.float16):
            loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def holds(self) -> list[Any]:
        return [*super().holds(), torch.tensor(self.scaler.get_scale())]


class ChannelsLast(Loop):
    """Images whose memory is not the elements in order, in bfloat16."""

    def made(self) -> Any:
        layers = (torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 4, 3, padding=1))
        return torch.nn.Sequential(*layers).to(torch.bfloat16).to(memory_format=torch.channels_last)

    def loss(self, batch: Any) -> Any:
        images = batch.view(32, 1, 8, 8).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        return self.model(images).square().mean()


class Averaged(Loop):
    """With an average of the weights beside them."""

    def more(self) -> dict[str, Any]:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)
        return {"average": self.average}

    def step(self, number: int) -> None:
        super().step(number)
        self.average.update_parameters(self.model)

    def holds(self) -> list[Any]:
        return [*super().holds(), *(value.clone() for value in self.average.state_dict().values())]


class EightBit(Loop):
    """Moments of eight bits, in a subclass of Tensor."""

    def __init__(self) -> None:
        from torchao.optim import AdamW8bit

        super().__init__()
        self.optimizer = AdamW8bit(self.model.parameters(), lr=0.01)
        self.state = State(self.model, self.optimizer)


class OnHost(Loop):
    """Where the model is not on the device, nothing of its checkpoint is."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = self.made().cpu()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state = State(self.model, self.optimizer)

    def loss(self, batch: Any) -> Any:
        return self.model(batch.cpu()).square().mean()


LOOPS: list[Any] = [Loop, Capturable, Momentum, Dropout, Scaled, ChannelsLast, Averaged, OnHost]
# A package that warns when it is compiled or compiles is none of what is tested here.
OF_TORCHAO = [pytest.mark.needs("torchao"), pytest.mark.filterwarnings("ignore")]
LOOPS.append(pytest.param(EightBit, marks=OF_TORCHAO))


@pytest.mark.parametrize("overlap", [False, True], ids=["blocking", "overlapped"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_training_goes_on_bit_for_bit(root: str, loop: Callable[[], Loop], overlap: bool) -> None:
    first = loop()
    with Manager(root, overlap=overlap) as manager:
        manager.restore(first.state)
        for number in range(STEPS):
            first.step(number)
            if number == SAVED:
                handle = manager.save(number, first.state, on_busy="wait")
        assert handle.wait("durable", 60), handle
    want = first.holds()

    again = loop()
    torch.rand(5, device="cuda")  # what the device draws next is the checkpoint's to say
    with Manager(root) as manager:
        found = manager.restore(again.state)
    for number in range(found.next_step, STEPS):
        again.step(number)
    got = again.holds()
    assert isinstance(found, Restored) and found.step == SAVED and len(got) == len(want)
    assert all(torch.equal(one, other) for one, other in zip(want, got))


def test_a_captured_graph_goes_on_with_what_was_restored(root: str) -> None:
    """A replay reads and writes addresses: a restore that put new tensors in place would not reach it."""
    made = Capturable()
    batch = torch.zeros(32, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            made.loss(batch).backward()
            made.optimizer.step()
            made.optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.loss(batch).backward()
        made.optimizer.step()

    def replay(number: int) -> None:
        batch.copy_(torch.randn(32, 64, generator=torch.Generator().manual_seed(number)))
        for parameter in made.model.parameters():
            parameter.grad.zero_()
        graph.replay()

    with Manager(root) as manager:
        manager.restore(made.state)
        for number in range(STEPS):
            replay(number)
            if number == SAVED:
                assert manager.save(number, made.state).wait("durable", 60)
    want = made.holds()
    with Manager(root) as manager:
        found = manager.restore(made.state)
    for number in range(found.next_step, STEPS):
        replay(number)
    assert all(torch.equal(one, other) for one, other in zip(want, made.holds()))


_TYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int64", "bool"]


def test_every_type_and_every_layout(root: str) -> None:
    def made(fill: Any) -> dict[str, Any]:
        out = {}
        for name in _TYPES:
            kind = getattr(torch, name)
            values = fill(5, 7).to(kind)
            out[name] = values
            out[f"{name}.none"] = torch.zeros(0, 3, dtype=kind, device="cuda")
            out[f"{name}.scalar"] = fill(1).to(kind).reshape(())
            out[f"{name}.turned"] = values.t()
        out["strided"] = fill(8, 8)[::2, 1::3]
        out["turned"] = fill(300, 200).t()
        out["tied"] = out["again"] = fill(4)
        return out

    want = made(lambda *shape: torch.randn(*shape, device="cuda") * 3)
    held = {name: value.clone() for name, value in want.items()}
    with Manager(root) as manager:
        manager.restore(state := State(extra=want))
        assert manager.save(0, state).wait("durable", 60)
    got = made(lambda *shape: torch.zeros(*shape, device="cuda"))
    with Manager(root) as manager:
        manager.restore(State(extra=got))
    for name, value in held.items():
        assert got[name].device.type == "cuda" and got[name].dtype == value.dtype
        one, other = (part.contiguous().view(-1).view(torch.uint8) for part in (value, got[name]))
        assert torch.equal(one, other), name
