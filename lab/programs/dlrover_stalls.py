"""DLRover Flash Checkpoint under frameworks, and Megatron-core, for framework_stalls.py: seconds of each save.

DLRover runs as it does without its launcher: a process of its own writes to storage what lies in shared memory. Only
the client of its master, which is not there, is a stub. A save begins when DLRover's tracker file names the one before.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TRACKER = "dlrover_latest.txt"
LONGEST = 120.0
Times = list[float]


class Stub:
    """Of DLRover's client of its master: says yes to everything."""

    @classmethod
    def singleton_instance(cls, *_: Any, **__: Any) -> Stub:
        return cls()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: True


def prepare_dlrover_environment() -> None:
    """Set DLRover's environment variables and install the stub of its master's client.

    Call before DLRover is imported, and once for each folder: its sockets and its shared memory have the run's
    name.
    """
    os.environ.update(TORCHELASTIC_RUN_ID=uuid.uuid4().hex, LOCAL_RANK="0", RANK="0", WORLD_SIZE="1")
    os.environ.update(LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", DS_ACCELERATOR="cpu")
    stub: Any = types.ModuleType("dlrover.python.elastic_agent.master_client")
    stub.MasterClient = Stub
    sys.modules.setdefault(stub.__name__, stub)


def kill_dlrover_processes() -> None:
    """Kill DLRover's process, which would outlive the row, and delete its shared memory."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    for path in Path("/dev/shm").glob(f"*{os.environ.get('TORCHELASTIC_RUN_ID', ' ')}*"):
        path.unlink()


def init_single_rank_group(folder: Path) -> None:
    """One rank, over gloo, where there is none yet."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{folder}.ranks", rank=0, world_size=1)


def wait_for_tracked_step(folder: Path, step: object) -> None:
    """Waits until the tracker names that step. Raises TimeoutError."""
    end = time.monotonic() + LONGEST
    path = folder / TRACKER
    while not path.exists() or path.read_text().strip() != str(step):
        if time.monotonic() > end:
            content = "nothing"
            if path.exists():
                content = path.read_text()
            raise TimeoutError(f"after {LONGEST:.0f} s its tracker says {content}, expected {step}")
        time.sleep(0.005)


def append_call_seconds(call: Callable[[], Any], into: Times) -> Any:
    begin = time.perf_counter()
    try:
        return call()
    finally:
        into.append(time.perf_counter() - begin)


def train_steps(net: Any, optimizer: torch.optim.Optimizer, save: int, steps: int) -> None:
    """Train on the number of the save."""
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.tensor([save]))["loss"].backward()
        optimizer.step()


def time_ddp_checkpointer(net: Any, saves: int, steps: int, folder: Path) -> Times:
    """`DdpCheckpointer`, DLRover's adapter of a loop of one's own."""
    prepare_dlrover_environment()
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    optimizer = torch.optim.AdamW(net.parameters())
    checkpointer = DdpCheckpointer(str(folder))
    times: Times = []
    for save in range(1, saves + 1):
        train_steps(net, optimizer, save, steps)
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        path = str(folder / f"{save}.pt")
        append_call_seconds(
            lambda: checkpointer.save_checkpoint(save, state, path, storage_type=StorageType.DISK),  # noqa: B023
            times,
        )
        wait_for_tracked_step(folder, save)
    return times


def import_flash_trainer_class() -> Any:
    """`FlashCkptTrainer`, DLRover's adapter of the Trainer."""
    prepare_dlrover_environment()
    from dlrover.trainer.torch.flash_checkpoint.hf_trainer import FlashCkptTrainer

    return FlashCkptTrainer


def time_deepspeed_checkpointer(engine: Any, step: Callable[[int], None], saves: int, folder: Path) -> Times:
    """`DeepSpeedCheckpointer`, DLRover's adapter of DeepSpeed."""
    prepare_dlrover_environment()
    from dlrover.trainer.torch.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

    checkpointer = DeepSpeedCheckpointer(engine, str(folder))
    times: Times = []
    for save in range(1, saves + 1):
        step(save)
        append_call_seconds(
            lambda: checkpointer.save_checkpoint(str(folder), str(save), storage_type=StorageType.DISK),  # noqa: B023
            times,
        )
        wait_for_tracked_step(folder, save)
    return times


def try_megatron_with_dlrover(folder: Path) -> Times:
    """`save_checkpoint`, DLRover's adapter of Megatron-LM."""
    prepare_dlrover_environment()
    init_single_rank_group(folder)
    from dlrover.trainer.torch.flash_checkpoint import megatron

    megatron.save_checkpoint(1, [], None, None)
    return []


def time_megatron(how: str, net: Any, saves: int, steps: int, folder: Path) -> Times:
    """Megatron-core's `dist_checkpointing` of tensors that are whole on one rank: `own`, its own `async`, `ours`."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "frameworks"))
    init_single_rank_group(folder)
    import megatron_on_cpu  # noqa: F401
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    from hyperpod_kit.checkpoint.adapters.megatron import MegatronCheckpoints

    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(1)
    optimizer = torch.optim.AdamW(net.parameters())
    checkpoints = None
    handles: list[Any] = []
    queue = None
    if how == "ours":
        checkpoints = MegatronCheckpoints(str(folder), keep=None)
        handles = collect_handles(checkpoints.manager)
    elif how == "async":
        queue = AsyncCallsQueue()

    def save_checkpoint(where: Path) -> None:
        state = sharded_state(net, optimizer)
        if checkpoints is not None:
            checkpoints.save(state, str(where), async_sharded_save=True)
            return
        where.mkdir()
        request = dist_checkpointing.save(state, str(where), async_sharded_save=queue is not None)
        if queue is not None:
            queue.schedule_async_request(request)

    times: Times = []
    for number in range(1, saves + 1):
        train_steps(net, optimizer, number, steps)
        append_call_seconds(lambda: save_checkpoint(folder / f"iter_{number:07d}"), times)  # noqa: B023
        if checkpoints is not None:
            assert handles[-1].wait("durable", LONGEST)
        elif queue is not None:
            queue.maybe_finalize_async_calls(blocking=True)
        else:
            os.sync()
    if checkpoints is not None:
        checkpoints.close()
    if queue is not None:
        queue.close()
    return times


def sharded_state(net: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the net's parameter and its moments as Megatron-core takes them."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    (parameter,) = net.parameters()
    moments = optimizer.state[parameter]
    tensors = {"weight": parameter.detach(), "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
    return {name: ShardedTensor.from_rank_offsets(name, tensor) for name, tensor in tensors.items()}


def collect_handles(manager: Any) -> list[Any]:
    """Have the manager's `save` put each handle that it returns into a list, and return that list."""
    handles: list[Any] = []
    save = manager.save

    def save_and_collect(*args: Any, **options: Any) -> Any:
        handles.append(save(*args, **options))
        return handles[-1]

    manager.save = save_and_collect
    return handles
