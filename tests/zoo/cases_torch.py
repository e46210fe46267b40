"""What torch itself has that keeps state in other ways than plain parameters and their moments."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.zoo.cases_optimizers import Net, net
from tests.zoo.training import WIDTH, Case, Layout, Training

Make = Callable[[int, Layout], Training]
ONE, BOTH = ("1",), ("1", "fsdp2")


def adamw(model: Any) -> Any:
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-2)


def trained(build: Callable[[], Any], optimizer: Callable[[Any], Any] = adamw, **options: Any) -> Make:
    """A case of a model: `build` makes it, from random numbers of the seed."""

    def make(seed: int, layout: Layout) -> Training:
        torch.manual_seed(seed)
        model = layout.divide(build())
        return Training(model, optimizer(model), **options)

    return make


# --- parametrizations -------------------------------------------------------------------------------------------


def _parametrized(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        model = Net()
        getattr(nn.utils.parametrizations, name)(model.first, **options)
        return model

    return build


def _weight_norm_of_old() -> Any:
    model = Net()
    nn.utils.weight_norm(model.first)
    return model


def _spectral_norm_of_old() -> Any:
    model = Net()
    nn.utils.spectral_norm(model.first)
    return model


def _pruned() -> Any:
    from torch.nn.utils import prune

    model = Net()
    prune.random_unstructured(model.first, "weight", amount=0.3)
    prune.l1_unstructured(model.first, "weight", amount=0.2)
    return model


class Halved(nn.Module):
    """A parametrization with a buffer of its own, which each forward changes."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, weight: Any) -> Any:
        self.count += 1
        return weight * (0.5 + 0.01 * self.count)

    def right_inverse(self, weight: Any) -> Any:
        return weight * 2


def _counted_parametrization() -> Any:
    from torch.nn.utils import parametrize

    model = Net()
    parametrize.register_parametrization(model.first, "weight", Halved())
    return model


# --- tied -------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One weight in two modules, one module at two places, one buffer under two names."""

    shift: torch.Tensor
    same: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight
        self.norm = nn.BatchNorm1d(WIDTH)
        self.again = self.norm
        shift = torch.randn(WIDTH)
        self.register_buffer("shift", shift)
        self.register_buffer("same", shift)

    def forward(self, batch: Any) -> Any:
        self.shift.mul_(0.9)
        return self.last(self.again(self.norm(self.first(batch)))) + self.same


class Overlapping(nn.Module):
    """Buffers that are parts of one memory: a row of a table, the same bytes as whole numbers, a scalar of them."""

    table: torch.Tensor
    row: torch.Tensor
    one: torch.Tensor
    turned: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        table = torch.randn(4, WIDTH)
        self.register_buffer("table", table)
        self.register_buffer("row", table[1])
        self.register_buffer("bits", table.view(torch.int32))
        self.register_buffer("one", table[2, 3])
        self.register_buffer("turned", table.t())

    def forward(self, batch: Any) -> Any:
        self.table.mul_(0.97)
        return self.line(batch) + self.row + self.one + self.turned[:, 0]


class Flat(nn.Module):
    """All weights are views of one flat parameter, which alone is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(2 * WIDTH * WIDTH) * 0.1)
        self.register_buffer("first", self.flat.detach()[: WIDTH * WIDTH].view(WIDTH, WIDTH))

    def forward(self, batch: Any) -> Any:
        return batch @ self.first + batch @ self.flat[WIDTH * WIDTH :].view(WIDTH, WIDTH)


# --- strides and types ------------------------------------------------------------------------------------------


class Strided(nn.Module):
    part: torch.Tensor
    backwards: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(2 * WIDTH, WIDTH).t() * 0.1)
        self.second = nn.Parameter((torch.randn(WIDTH, 4 * WIDTH) * 0.1)[:, ::4])
        conv: Any = nn.Conv2d(1, 4, 3)
        self.conv = conv.to(memory_format=torch.channels_last)
        self.register_buffer("part", torch.randn(4 * WIDTH)[WIDTH : 2 * WIDTH])
        self.register_buffer("backwards", torch.randn(WIDTH).flip(0))

    def forward(self, batch: Any) -> Any:
        self.part.mul_(0.9)
        hidden = (batch @ self.turned)[:, :WIDTH] @ self.second
        images = self.conv(batch.view(-1, 1, 4, WIDTH // 4).contiguous(memory_format=torch.channels_last))
        return hidden + self.part + self.backwards + images.mean()


class OfAllTypes(nn.Module):
    """A buffer of each type that there is, with and without items."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        for name in _TYPES:
            data = torch.randint(0, 255, (32,), dtype=torch.uint8)
            kind = getattr(torch, name)
            values = data % 2 == 0 if kind is torch.bool else data.view(kind)
            self.register_buffer(f"of_{name}", values)
            self.register_buffer(f"one_{name}", values[:1].reshape(()).clone())
            self.register_buffer(f"none_{name}", values[:0].reshape(0, 3))

    def forward(self, batch: Any) -> Any:
        return self.line(batch)


_TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"),
    *("float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64) * 0.1)
        self.second = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex128) * 0.1)
        self.register_buffer("mirrored", torch.randn(WIDTH, dtype=torch.complex64).conj())
        self.register_buffer("negative", torch.randn(WIDTH, dtype=torch.complex64).conj().imag)

    def forward(self, batch: Any) -> Any:
        hidden = (batch.to(torch.complex64) @ self.first).to(torch.complex128) @ self.second
        return (hidden * self.mirrored).real.float() + self.negative


class Small(nn.Module):
    """Parameters without a dimension, without an item, and of one item."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(()))
        self.nothing = nn.Parameter(torch.empty(0, WIDTH))
        self.single = nn.Parameter(torch.rand(1, 1, 1))

    def forward(self, batch: Any) -> Any:
        return self.line(batch) * self.scale + self.nothing.sum() + self.single.sum()


# --- built late, or by another tool -----------------------------------------------------------------------------


def _lazy() -> Any:
    model = nn.Sequential(nn.LazyLinear(2 * WIDTH), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(WIDTH))
    model(torch.randn(2, WIDTH))
    return model


class LateBuffer(nn.Module):
    """The first forward makes its buffer; its own loading code makes room for one."""

    scale: Any

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", None)

    def forward(self, batch: Any) -> Any:
        if self.scale is None:
            self.scale = batch.detach().abs().amax(0)
        self.scale.mul_(0.9)
        return self.line(batch) * self.scale

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}scale")
        if saved is not None:
            self.scale = torch.empty_like(saved)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _compiled(build: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        return torch._dynamo.optimize("eager")(build())

    return made


def _compiled_inside() -> Any:
    model: Any = Net()
    model.first = torch._dynamo.optimize("eager")(model.first)
    return model


def _scripted() -> Any:
    return torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))


def _traced_by_fx() -> Any:
    return torch.fx.symbolic_trace(Net())


def _data_parallel() -> Any:
    return nn.DataParallel(Net())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True, proj_size=WIDTH // 2)

    def forward(self, batch: Any) -> Any:
        return self.lstm(batch)[0]


class Sparse(nn.Module):
    """Gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH, sparse=True)

    def forward(self, batch: Any) -> Any:
        return batch * self.embedding(batch.argmax(1))


class InExtraState(nn.Module):
    """`get_extra_state` gives a bit of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        self.seen: dict[Any, Any] = {"steps": 0, "norms": [], (1, 2): None, "mean": torch.zeros(WIDTH)}

    def forward(self, batch: Any) -> Any:
        self.seen["steps"] += 1
        self.seen["norms"].append(float(batch.norm()))
        self.seen["mean"] = self.seen["mean"] * 0.9 + batch.mean(0)
        return self.line(batch) + self.seen["mean"] * self.seen["norms"][0] / self.seen["steps"]

    def get_extra_state(self) -> Any:
        return copy.deepcopy(self.seen)

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


class Keyed(nn.Module):
    """Names with every character that a name may have."""

    def __init__(self) -> None:
        super().__init__()
        weights = {name: nn.Parameter(torch.randn(WIDTH)) for name in ("a/b", "a b", "~1", "ä", "*[", "$", "weight~2")}
        self.weights = nn.ParameterDict(weights)
        self.inner = nn.ModuleDict({"0": nn.Linear(WIDTH, WIDTH), "weights": nn.Linear(WIDTH, WIDTH)})

    def forward(self, batch: Any) -> Any:
        for number, weight in enumerate(self.weights.values()):
            batch = batch + weight * number
        return self.inner["weights"](self.inner["0"](batch))


# --- optimizers -------------------------------------------------------------------------------------------------


def _with_tensors_as_options(model: Any) -> Any:
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    return torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2), betas=betas, capturable=False, foreach=False)


def _fused(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def _in_named_groups(model: Any) -> Any:
    named = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [(name, param) for name, param in named.items() if param.ndim < 2], "lr": 1e-3, "tag": ("x", 1)},
        {"params": [(name, param) for name, param in named.items() if param.ndim >= 2], "note": {"a": [1, None]}},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


class WithSharedState(torch.optim.Optimizer):
    """Keeps state that is of no parameter, and nested values."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        every: Any = self.state
        whole = every["whole"]
        whole["steps"] = whole.get("steps", 0) + 1
        whole.setdefault("norms", []).append(torch.zeros(()))
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                state.setdefault("history", {"last": [torch.zeros_like(param)], "sizes": (1, 2)})
                last = state["history"]["last"]
                last.append(param.grad.clone())
                state["mean"] = sum(last[-3:]) / 3
                whole["norms"][-1] += param.grad.square().sum()
                param.sub_(state["mean"] * group["lr"] / (1 + whole["norms"][0]))


def _lbfgs(model: Any) -> Any:
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=3, line_search_fn="strong_wolfe")


# --- beside a model ---------------------------------------------------------------------------------------------


def beside(make: Callable[[Any, Any], tuple[dict[str, Any], Callable[[int, float], Any]]]) -> Make:
    """A case of objects that are made from model and optimizer, with what is done after each step."""

    def made(seed: int, layout: Layout) -> Training:
        model = net(seed, layout)
        optimizer = adamw(model)
        objects, after = make(model, optimizer)
        return Training(model, optimizer, objects, after_step=after)

    return made


def _averaged(**options: Any) -> Make:
    def make(model: Any, optimizer: Any) -> Any:
        from torch.optim import swa_utils

        fn = swa_utils.get_ema_multi_avg_fn(0.9) if options.get("ema") else None
        average = swa_utils.AveragedModel(model, multi_avg_fn=fn, use_buffers=True)
        schedule = swa_utils.SWALR(optimizer, swa_lr=5e-3, anneal_epochs=4)

        def after(number: int, loss: float) -> None:
            average.update_parameters(model)
            schedule.step()

        return {"average": average, "schedule": schedule}, after

    return beside(make)


def _scheduled(build: Callable[[Any, Any], Any], *, with_loss: bool = False) -> Make:
    def make(model: Any, optimizer: Any) -> Any:
        schedule = build(torch.optim.lr_scheduler, optimizer)
        return {"schedule": schedule}, lambda number, loss: schedule.step(*([loss] if with_loss else []))

    return beside(make)


class RateOfCalls:
    """A schedule's function with state of its own."""

    def __init__(self) -> None:
        self.rate = 0.9
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return self.rate**epoch / (1 + 0.01 * self.calls)


_SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "ChainedScheduler": lambda of, it: of.ChainedScheduler(
        [of.ConstantLR(it, 0.1, 4), of.ExponentialLR(it, 0.9), of.CosineAnnealingLR(it, 9)], optimizer=it
    ),
    "SequentialLR": lambda of, it: of.SequentialLR(
        it, [of.LinearLR(it, 0.1, total_iters=3), of.StepLR(it, 2), of.CosineAnnealingLR(it, 5)], [2, 6]
    ),
    "LambdaLR of an object": lambda of, it: of.LambdaLR(it, RateOfCalls()),
    "OneCycleLR": lambda of, it: of.OneCycleLR(it, 0.05, total_steps=20),
    "CyclicLR": lambda of, it: of.CyclicLR(it, 1e-3, 1e-1, step_size_up=3, mode="triangular2", cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda of, it: of.CosineAnnealingWarmRestarts(it, 3, 2),
    "PolynomialLR": lambda of, it: of.PolynomialLR(it, 20, 0.9),
    "MultiStepLR": lambda of, it: of.MultiStepLR(it, [2, 5, 5, 9]),
}


def _scaled(seed: int, layout: Layout) -> Training:
    """float16 under a GradScaler, which finds overflows now and then."""
    model = net(seed, layout)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2)

    def update(batch: Any, number: int) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(batch) - batch).square().mean() * (float("inf") if number % 4 == 3 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.detach())

    return Training(model, optimizer, {"scaler": scaler}, update=update)


def _adversarial(seed: int, layout: Layout) -> Training:
    """Two models, two optimizers, two schedules."""
    model = net(seed, layout)
    torch.manual_seed(seed + 100)
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
    first, second = adamw(model), torch.optim.NAdam(other.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(second, patience=0, factor=0.7, cooldown=1)

    def update(batch: Any, number: int) -> float:
        for optimizer, sign in ((first, -1), (second, 1)):
            optimizer.zero_grad()
            (sign * (other(model(batch)) - other(batch)).mean()).backward()
            optimizer.step()
        loss = other(model(batch)).mean().detach()
        schedule.step(loss)
        return float(loss)

    return Training(model, first, {"other": other, "second": second, "schedule": schedule}, update=update)


class Draws:
    """Generators of torch, numpy and Python, each of its own, as a sampler keeps them."""

    def __init__(self, seed: int) -> None:
        self.torch = torch.Generator().manual_seed(seed)
        self.numpy = np.random.default_rng(seed)
        self.twister = np.random.RandomState(seed)
        self.python = random.Random(seed)

    def __call__(self) -> float:
        numbers = [float(torch.rand((), generator=self.torch)), self.numpy.normal(), self.twister.normal()]
        return sum(numbers) + self.python.gauss(0, 1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "torch": self.torch.get_state(),
            "numpy": self.numpy.bit_generator.state,
            "twister": self.twister.get_state(),
            "python": self.python.getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.torch.set_state(state["torch"])
        self.numpy.bit_generator.state = state["numpy"]
        self.twister.set_state(state["twister"])
        self.python.setstate(state["python"])


def _drawn(seed: int, layout: Layout) -> Training:
    model = net(seed, layout)
    optimizer, draws = adamw(model), Draws(seed)

    def update(batch: Any, number: int) -> float:
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean() * abs(draws())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Training(model, optimizer, {"draws": draws}, update=update)


class Record:
    """Arrays and numbers of numpy as they come out of a program's measurements."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"steps": np.int64(0), "best": np.float32(np.inf), "curve": np.zeros(0)}

    def add(self, number: int, loss: float) -> None:
        self.values["steps"] += 1
        self.values["best"] = min(self.values["best"], np.float32(loss))
        self.values["curve"] = np.append(self.values["curve"], loss)
        self.values["turned"] = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)) * number
        self.values["flag"], self.values["one"] = np.bool_(number % 2), np.array(loss)
        self.values["half"] = np.arange(4, dtype=np.float16)[::2]

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def _recorded(model: Any, optimizer: Any) -> Any:
    record = Record()
    return {"record": record}, record.add


# --- by torch's own switches ------------------------------------------------------------------------------------


def _swapped(seed: int, layout: Layout) -> Training:
    """Loading swaps the tensors in place of copying into them."""
    training = trained(Net)(seed, layout)
    torch.__future__.set_swap_module_params_on_conversion(True)
    training.after_step = lambda number, loss: torch.__future__.set_swap_module_params_on_conversion(False)
    return training


def _frozen_on_the_way(seed: int, layout: Layout) -> Training:
    """A layer is frozen for some steps: its moments stay."""
    training = trained(Net)(seed, layout)
    model, optimizer = training.model, training.optimizer

    def update(batch: Any, number: int) -> float:
        model.first.requires_grad_(number < 2 or number > 6)
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    training.update = update
    return training


def cases() -> Iterator[Case]:
    for name in ("weight_norm", "spectral_norm", "orthogonal"):
        yield Case("torch.nn", f"parametrizations.{name}", trained(_parametrized(name)), ONE)
    cayley = _parametrized("orthogonal", orthogonal_map="cayley")
    yield Case("torch.nn", "parametrizations.orthogonal, cayley", trained(cayley), ONE)
    yield Case("torch.nn", "utils.weight_norm", trained(_weight_norm_of_old), ONE)
    yield Case("torch.nn", "utils.spectral_norm", trained(_spectral_norm_of_old), ONE)
    yield Case("torch.nn", "utils.prune", trained(_pruned), ONE)
    yield Case("torch.nn", "a parametrization with a buffer", trained(_counted_parametrization), ONE)
    yield Case("torch.nn", "tied weights, modules and buffers", trained(Tied), BOTH)
    yield Case("torch.nn", "buffers of one memory", trained(Overlapping), BOTH)
    yield Case("torch.nn", "a buffer that is part of a parameter", trained(Flat), ONE)
    yield Case("torch.nn", "strides", trained(Strided), ONE)
    yield Case("torch.nn", "buffers of all types", trained(OfAllTypes), BOTH)
    yield Case("torch.nn", "complex, conjugate and negative", trained(Complex), ONE)
    yield Case("torch.nn", "no dimension, no item", trained(Small), ONE)
    yield Case("torch.nn", "lazy modules", trained(_lazy), BOTH)
    yield Case("torch.nn", "a buffer made by the first forward", trained(LateBuffer), BOTH)
    yield Case("torch.nn", "OptimizedModule", trained(_compiled(Net)), ONE)
    yield Case("torch.nn", "OptimizedModule inside and outside", trained(_compiled(_compiled_inside)), ONE)
    yield Case("torch.nn", "jit.script", trained(_scripted), ONE)
    yield Case("torch.nn", "fx.symbolic_trace", trained(_traced_by_fx), ONE)
    yield Case("torch.nn", "DataParallel", trained(_data_parallel), ONE)
    yield Case("torch.nn", "LSTM with projections", trained(Recurrent), BOTH)
    yield Case("torch.nn", "get_extra_state", trained(InExtraState), BOTH)
    yield Case("torch.nn", "names of all kinds", trained(Keyed), BOTH)
    yield Case("torch.nn", "set_swap_module_params_on_conversion", _swapped, BOTH)
    yield Case("torch.nn", "frozen on the way", _frozen_on_the_way, BOTH)
    sparse = trained(Sparse, lambda model: torch.optim.SparseAdam(model.parameters(), lr=1e-2))
    yield Case("torch", "optim.SparseAdam", sparse, ONE)
    yield Case("torch", "optim.LBFGS", trained(Net, _lbfgs, closure=True), BOTH)
    yield Case("torch", "optim.AdamW, options that are tensors", trained(Net, _with_tensors_as_options), BOTH)
    yield Case("torch", "optim.AdamW, fused", trained(Net, _fused), BOTH)
    yield Case("torch", "optim.AdamW, named groups with notes", trained(Net, _in_named_groups), BOTH)
    shared = trained(Net, lambda model: WithSharedState(model.parameters()))
    yield Case("torch", "an optimizer with state of no parameter", shared, BOTH)
    yield Case("torch", "swa_utils.AveragedModel, SWALR", _averaged(), ONE)
    yield Case("torch", "swa_utils.AveragedModel, EMA", _averaged(ema=True), ONE)
    for name, schedule in _SCHEDULES.items():
        yield Case("torch", f"lr_scheduler.{name}", _scheduled(schedule), BOTH)
    plateau = _scheduled(lambda of, it: of.ReduceLROnPlateau(it, patience=0, cooldown=1), with_loss=True)
    yield Case("torch", "lr_scheduler.ReduceLROnPlateau", plateau, BOTH)
    yield Case("torch", "amp.GradScaler", _scaled, ONE)
    yield Case("torch", "two models, optimizers, schedules", _adversarial, ONE)
    yield Case("torch", "generators of torch, numpy and Python", _drawn, BOTH)
    yield Case("torch", "arrays and numbers of numpy", beside(_recorded), BOTH)
