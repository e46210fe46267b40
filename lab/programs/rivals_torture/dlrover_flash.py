"""DLRover Flash Checkpoint under flips, kills and a full disk.

    python lab/programs/rivals_torture/dlrover_flash.py [--flips 500] [--kills 40] [--seed 1]

Its real shared-memory handler, its real saver of the agent, its real storage; only the gRPC client of its master is a
stub. A kill is SIGKILL to the trainer before the n-th tensor of a save's copy into shared memory; then the agent does
what it does when a trainer has died (`save_shm_to_storage`), and a new trainer loads as the engine's `load` does:
shared memory, else what the tracker file names.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import types
import uuid
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from cases import (
    OUTCOME_LABELS,
    RAISED,
    RIGHT,
    SCRATCH,
    SIZES,
    WRONG,
    count_flip_outcomes,
    is_state_of_step,
    limit_file_size,
    print_report,
    run_in_child,
)
from cases import state_of_step as state_of

STEPS = (10, 20)


class MasterClient:
    """Says yes to everything."""

    @classmethod
    def singleton_instance(cls, *_: Any, **__: Any) -> MasterClient:
        return cls()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: True


def import_saver_with_stub_master() -> Any:
    stub = types.ModuleType("dlrover.python.elastic_agent.master_client")
    stub.MasterClient = MasterClient  # type: ignore[attr-defined]
    sys.modules[stub.__name__] = stub
    import dlrover.python.elastic_agent.torch.ckpt_saver as module

    logging.disable(logging.CRITICAL)
    return module


def save_to_memory_and_die(module: Any, folder: Path, dies_at: int | None) -> None:
    """Save step 10 to memory, then step 20; die before the copy of its tensor number `dies_at`."""
    from dlrover.python.common.multi_process import SharedLock

    handler = module.SharedMemoryHandler(0, host=False)
    lock = SharedLock("shm_lock_0", create=False)
    copy = module._write_shared_memory
    copied = [0]

    def counting(*args: Any) -> None:
        if copied[0] == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        copied[0] += 1
        copy(*args)

    for step in STEPS:
        if step == STEPS[-1]:
            module._write_shared_memory = counting
            if dies_at is None:
                return
        lock.acquire(False)
        config = module.CheckpointConfig(step=step, paths={"model_states": str(folder / str(step) / "rank_0.pt")})
        handler.save_state_dict({"model_states": state_of(step), module.DLROVER_CKPT_CONFIG_KEY: config})
        lock.release()
        if step == STEPS[0]:
            os.write(READY[1], b"x")
            os.read(GO[0], 1)


READY, GO = os.pipe(), os.pipe()


def run_agent_and_trainer(
    module: Any, folder: Path, dies_at: int | None, *, persisted: bool, limit: int | None = None
) -> Any:
    """An agent with one trainer, up to the breakpoint save after the trainer's end; the saver."""
    os.environ["TORCHELASTIC_RUN_ID"] = uuid.uuid4().hex
    pid = os.fork()
    if pid == 0:
        os.read(GO[0], 1)
        try:
            save_to_memory_and_die(module, folder, dies_at)
        finally:
            os._exit(0)
    from dlrover.python.common.storage import PosixDiskStorage

    saver = module.DdpCheckpointSaver(str(folder), PosixDiskStorage().get_class_meta(), 1, 1)
    os.write(GO[1], b"x")
    os.read(READY[0], 1)
    if persisted:
        saver.save_step_checkpoint(STEPS[0])
    os.write(GO[1], b"x")
    os.waitpid(pid, 0)
    if limit is not None:
        limit_file_size(limit)
    try:
        saver.save_shm_to_storage()
    except Exception:
        logging.debug("its agent logs it and goes on")
    return saver


def classify_state(loaded: Any) -> int:
    if not loaded:
        return SCRATCH
    loaded = loaded.get("model_states", loaded)
    if any(is_state_of_step(loaded, step) for step in STEPS):
        return RIGHT
    return WRONG


def load_like_engine(saver: Any, folder: Path, *, memory: bool) -> int:
    """Load as FullCheckpointEngine.load does and return the outcome."""
    hot = {}
    if memory:
        hot = saver._shm_handlers[0].load_state_dict()
    if hot:
        return classify_state({name: tensor for name, tensor in hot["model_states"].items()})
    tracker = folder / "dlrover_latest.txt"
    content = ""
    if tracker.exists():
        content = tracker.read_text()
    if not content:
        return SCRATCH
    path = folder / content.strip() / "rank_0.pt"
    return classify_state(saver.storage.read_state_dict(str(path), lambda name: torch.load(name, map_location="cpu")))


def classify_load_after_kill(
    module: Any, number: int, *, persisted: bool, memory: bool, limit: int | None = None
) -> str:
    with tempfile.TemporaryDirectory(prefix="dlrover-torture-") as name:
        folder = Path(name)

        def case() -> int:
            saver = run_agent_and_trainer(module, folder, number, persisted=persisted, limit=limit)
            try:
                return load_like_engine(saver, folder, memory=memory)
            finally:
                saver._shm_handlers[0].unlink()

        return OUTCOME_LABELS[run_in_child(case, 120)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module = import_saver_with_stub_master()
    import dlrover

    dice = random.Random(args.seed)
    results: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="dlrover-torture-") as name:
        folder = Path(name)

        def write() -> int:
            run_agent_and_trainer(module, folder, None, persisted=True)._shm_handlers[0].unlink()
            return RIGHT

        if run_in_child(write, 120) == RAISED:
            raise SystemExit("DLRover did not write the checkpoint that was to be damaged")
        from dlrover.python.common.storage import PosixDiskStorage

        reader = types.SimpleNamespace(storage=PosixDiskStorage())
        files = [folder / "dlrover_latest.txt", folder / str(STEPS[0]) / "rank_0.pt"]
        results["one byte changed"] = count_flip_outcomes(
            files, args.flips, dice, lambda: load_like_engine(reader, folder, memory=False)
        )
    for what, persisted, memory in (
        ("killed in mid-copy, older step on disk, new node", True, False),
        ("killed in mid-copy, older step in memory only, same node", False, True),
        ("killed in mid-copy, older step on disk, same node", True, True),
    ):
        results[what] = Counter(
            classify_load_after_kill(module, dice.randrange(len(SIZES)), persisted=persisted, memory=memory)
            for _ in range(args.kills)
        )
    limits = [dice.randrange(1, 4 * sum(SIZES.values())) for _ in range(args.kills)]
    results["disk full at the save after a trainer's death, older step on disk, new node"] = Counter(
        classify_load_after_kill(module, len(SIZES), persisted=True, memory=False, limit=limit) for limit in limits
    )
    print_report("DLRover Flash Checkpoint", getattr(dlrover, "__version__", "0.6.1"), args.seed, results)


if __name__ == "__main__":
    main()
