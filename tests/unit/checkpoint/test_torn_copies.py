"""A tensor that changes while it is copied fails the save; training as usual never does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from hyperpod_kit.checkpoint import Manager, State, list_checkpoints, load_state  # noqa: E402
from hyperpod_kit.checkpoint.capture import staging  # noqa: E402
from hyperpod_kit.checkpoint.transfer.copied_sources import (  # noqa: E402
    CopyGuard,
    SampledWords,
)
from hyperpod_kit.checkpoint.transfer.device import SampledChunks  # noqa: E402
from tests.unit.checkpoint.test_fence import Job, block  # noqa: E402

DEADLINE = 60

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> str:
    return str(tmp_path / "run")


# --- every way to write to a tensor ---------------------------------------------------------------------------------


def in_place(job: Job) -> None:
    with torch.no_grad():
        job.model[0].weight.mul_(0.5)


def through_data(job: Job) -> None:
    job.model[0].weight.data.clamp_(-0.01, 0.01)


def through_numpy(job: Job) -> None:
    job.model[0].weight.detach().numpy()[:] += 1


def through_address(job: Job) -> None:
    """As a kernel of somebody else's."""
    import ctypes

    weight = job.model[0].weight
    ctypes.memset(weight.data_ptr(), 7, weight.nbytes)


def unwatched_optimizer(job: Job) -> None:
    """The moments of torch's fused kernel are not counted."""
    job.optimizer._optimizer_step_pre_hooks.clear()
    job.optimizer.step()


def in_inference_mode(job: Job) -> None:
    with torch.inference_mode():
        job.model[0].weight.add_(1)


WAYS: list[Callable[[Job], None]] = [
    in_place,
    through_data,
    through_numpy,
    through_address,
    unwatched_optimizer,
    in_inference_mode,
]


@pytest.mark.parametrize("change", WAYS, ids=lambda way: way.__name__)
def test_what_changes_during_an_overlapped_copy_fails_the_save_by_name(
    root: str, change: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, manager = Job(), Manager(root, overlap=True)
    job.optimizer = torch.optim.AdamW(job.model.parameters(), fused=True)
    job.state = State(job.model, job.optimizer, rng=False)
    manager.restore(job.state)
    job.step()
    assert manager.save(0, job.state).wait("durable", DEADLINE)
    job.forward().backward()
    with monkeypatch.context() as held:
        go = block(manager, held)
        handle = manager.save(1, job.state, on_busy="wait")
        change(job)
        go.set()
        manager.fence()
    assert not handle.wait("durable", DEADLINE)
    assert handle.state == "failed" and "changed while they were copied" in str(handle.reason), handle
    assert "model.0.weight" in str(handle.reason) and "manager.fence()" in str(handle.reason)
    later = manager.save(2, job.state, on_busy="wait")
    change(job)  # behind the fence it may
    manager.fence()
    last = manager.save(3, job.state, on_busy="wait")
    manager.fence()
    change(job)
    assert last.wait("durable", DEADLINE) and later.final
    assert manager.close()


def test_a_state_that_was_made_in_inference_mode_has_no_counter(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode():
        model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
    state, manager = State(model, optimizer, rng=False), Manager(root, overlap=True)
    assert model.weight.is_inference()
    assert manager.save(0, state).wait("durable", DEADLINE)
    with monkeypatch.context() as held:
        go = block(manager, held)
        handle = manager.save(1, state, on_busy="wait")
        with torch.inference_mode():
            model.bias.add_(1)
        go.set()
        manager.fence()
    assert not handle.wait("durable", DEADLINE)
    assert "model.bias changed" in str(handle.reason)
    assert manager.save(2, state, on_busy="wait").wait("durable", DEADLINE) and manager.close()


def test_buffers_and_values_are_copied_before_the_save_returns(root: str) -> None:
    job = Job()
    average = torch.optim.swa_utils.AveragedModel(job.model)
    extra = {"seen": torch.zeros(64)}
    state = State(job.model, job.optimizer, average=average, extra=extra)
    manager = Manager(root, overlap=True, keep=None)
    manager.restore(state)
    for step in range(20):
        job.step()
        average.update_parameters(job.model)
        handle = manager.save(step, state, on_busy="wait")
        extra["seen"] += 1
        job.model[1].reset_running_stats()
        job.forward()  # moves the running statistics while weights may still be copied
        assert handle.wait("durable", DEADLINE), handle
    assert manager.close()


# --- no false alarm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["foreach", "fused"])
def test_training_as_usual_raises_no_alarm(root: str, overlap: bool, kind: str) -> None:
    options = {"foreach": {"foreach": True}, "fused": {"fused": True}}
    job, manager = Job(128), Manager(root, overlap=overlap, keep=None)
    job.optimizer = torch.optim.AdamW(job.model.parameters(), **options[kind])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(job.optimizer, 500)
    state = State(job.model, job.optimizer, schedule=schedule)
    manager.restore(state)
    handles = []
    for step in range(16):
        job.step()
        schedule.step()
        handles.append(manager.save(step, state, on_busy="wait"))
        job.forward()
    assert manager.close()
    assert [handle for handle in handles if handle.state not in ("durable", "dropped")] == []
    assert sum(handle.state == "durable" for handle in handles) > 4


# --- a thread that writes at random moments -------------------------------------------------------------------------


def fill(weight: Any, number: int) -> None:
    with torch.no_grad():
        weight.fill_(float(number))


def fill_data(weight: Any, number: int) -> None:
    weight.data.fill_(float(number))


def fill_numpy(weight: Any, number: int) -> None:
    weight.detach().numpy().fill(float(number))


class Moments(NamedTuple):
    begun: float
    ended: float


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Moments]:
    """When each copy's sources were looked at for the first and for the last time."""
    seen: list[Moments] = []

    class TimedGuard(CopyGuard):
        def __init__(self, *sources: Any) -> None:
            super().__init__(*sources)
            self.begun, self.is_over = time.monotonic(), False

        def record_all_sources_changed_since_start(self) -> None:
            ended = time.monotonic()
            super().record_all_sources_changed_since_start()
            if not self.is_over:
                seen.append(Moments(self.begun, ended))
            self.is_over = True

    monkeypatch.setattr(staging, "CopyGuard", TimedGuard)
    return seen


@pytest.mark.parametrize("way", [fill, fill_data, fill_numpy], ids=lambda way: way.__name__)
def test_no_tensor_of_a_checkpoint_is_half_of_one_moment_and_half_of_another(
    root: str, way: Callable[[Any, int], None], copies: list[Moments]
) -> None:
    draw = random.Random(way.__name__)
    model = torch.nn.ParameterList([torch.zeros(draw.randrange(1_000, 400_000)) for _ in range(12)])
    state, manager = State(model, rng=False), Manager(root, keep=None, max_lost=None)
    manager.restore(state)
    ended = threading.Event()
    writes: list[Moments] = []

    def write() -> None:
        for number in range(1, 1_000_000):
            begun = time.monotonic()
            way(model[draw.randrange(len(model))], number)
            writes.append(Moments(begun, time.monotonic()))
            if ended.wait(draw.choice((0.0, 0.0001, 0.002, 0.01))):
                return

    writer = threading.Thread(target=write)
    writer.start()
    handles = [manager.save(step, state, on_busy="wait") for step in range(40)]
    ended.set()
    writer.join(DEADLINE)
    handles.append(manager.save(40, state, on_busy="wait"))
    assert manager.close()
    assert any(handle.state == "failed" for handle in handles) and handles[-1].state == "durable"
    for attempt in list_checkpoints(root):
        copy = torch.nn.ParameterList([torch.empty_like(weight) for weight in model])
        load_state(root, State(copy, rng=False), checkpoint_id=attempt.checkpoint_id)
        torn = [number for number, weight in enumerate(copy) if not bool((weight == weight[0]).all())]
        moments = copies[int(attempt.name.step)]
        # A thread may have been stopped within its write for all of the copy: then nothing was written meanwhile.
        stopped = any(write.begun < moments.begun and write.ended > moments.ended for write in writes)
        assert torn == [] or stopped, attempt.checkpoint_id


# --- samples --------------------------------------------------------------------------------------------------------


def layouts() -> list[Any]:
    base = torch.arange(0, 4096, dtype=torch.float32).reshape(64, 64)
    raw = torch.zeros(4099, dtype=torch.uint8)
    return [
        base,
        base.clone().t(),
        base.clone()[:, ::3],
        torch.tensor(3.5),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(5, dtype=torch.complex64),
        torch.zeros(4, 4, dtype=torch.complex128).t(),
        raw[3:11],
        raw[17:4097],
        torch.zeros(700_000),
        torch.zeros(6, 4, 5).permute(2, 0, 1),
        torch.zeros(20_000, dtype=torch.bool),
    ]


@pytest.mark.parametrize("kind", [SampledWords, SampledChunks])
def test_samples_differ_exactly_for_the_tensors_that_were_written_to(kind: Any) -> None:
    tensors = [*layouts(), torch.empty(0), torch.empty(3, 0)]
    samples = kind(tensors)
    for number, tensor in enumerate(tensors):
        before = samples.read()
        assert differing(samples, before, tensors) == set()
        tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(1)
        # The two halves of `raw` are different bytes of one memory.
        assert differing(samples, before, tensors) == ({number} if tensor.numel() else set())
        assert differing(samples, samples.read(), tensors) == set()


def differing(samples: Any, before: Any, tensors: list[Any]) -> set[int]:
    found = samples.differing(before)
    if isinstance(found, set):
        return found
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    return {numbers[id(tensor)] for tensor in samples.changed(found)}


@pytest.mark.parametrize("kind", [SampledWords, SampledChunks])
def test_gaps_in_a_tensors_memory_belong_to_others(kind: Any) -> None:
    whole = torch.zeros(512, 512)
    samples = kind([whole[:, ::2]])
    before = samples.read()
    whole[:, 1::2] = 5.0
    assert differing(samples, before, [whole]) == set()


def test_samples_draw_nothing_from_the_programs_generators() -> None:
    numpy.random.seed(3)
    want = numpy.random.random(4).tolist()
    numpy.random.seed(3)
    SampledWords(layouts()).read()
    assert numpy.random.random(4).tolist() == want


def test_nothing_to_sample() -> None:
    assert SampledWords([]).differing(SampledWords([]).read()) == set()
    assert SampledChunks([]).differing([]) is None
