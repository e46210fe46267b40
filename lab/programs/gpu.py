"""What a save and a restore cost beside a CUDA device: the state lies on the device, every copy crosses the bus.

    python lab/programs/gpu.py [--gigabytes 4] [--saves 5] [--folder DIR] [--json]

DIR is where checkpoints go: on /dev/shm, nothing waits for a disk. The state is a model of linear layers with AdamW.
Rows, each the median of its samples in one run:
  floor        the same bytes from the device into memory that is registered with the driver, nothing else
  save         the call of a save that returns when all is copied; `over floor` beside it
  overlapped   the call of a save that returns at once, and what a step beside the copy takes longer
  pinned DCP   torch's own `dcp.async_save` with its stager and pinned memory: the call
  torch.save   of the same state to /dev/shm
  hot restore  of a process that was killed, from the node's memory onto the device; over `proof`: digest, then copy
  cold restore from storage (the page cache holds it)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.checkpoint.repository.format import digest

WIDTH = 4096
BATCH = 16384


BEGIN = time.monotonic()


def print_progress(text: str) -> None:
    print(f"{time.monotonic() - BEGIN:5.0f} s  {text}", file=sys.stderr, flush=True)


def build_state(gigabytes: float) -> tuple[Any, Any]:
    """A state of about so many GB, as it is after one step."""
    torch.manual_seed(1)
    layers = max(1, round(gigabytes * 1e9 / (12 * WIDTH * WIDTH)))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    train_step(model, optimizer)
    return model, optimizer


def train_step(model: Any, optimizer: Any) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        model(torch.ones(BATCH, WIDTH, device="cuda")).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_tensors(model: Any, optimizer: Any) -> list[Any]:
    tensors = list(model.state_dict().values())
    for values in optimizer.state_dict()["state"].values():
        tensors += [value for value in values.values() if value.numel() > 1]
    return tensors


def time_on_device(work: Callable[[], Any]) -> float:
    """Seconds until `work` is done, on the device too."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def time_call(work: Callable[[], Any]) -> float:
    """Return the seconds until the call of `work` returns; the device may go on."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def copy_tensors(targets: list[Any], sources: list[Any]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def time_copies_both_ways(tensors: list[Any], count: int) -> dict[str, list[float]]:
    """Plain copies into registered memory and back."""
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    copy_tensors(pinned, tensors)
    return {
        "floor_s": [time_on_device(lambda: copy_tensors(pinned, tensors)) for _ in range(count)],
        "up_s": [time_on_device(lambda: copy_tensors(tensors, pinned)) for _ in range(count)],
    }


def time_digest_and_copy(tensors: list[Any], count: int) -> list[float]:
    """Return the seconds of digesting the same bytes in host memory and copying them to the device."""
    host = [tensor.cpu().pin_memory() for tensor in tensors]
    leaf = digest.algorithm("xxh3").leaf
    parts: list[memoryview] = []
    for tensor in host:
        octets = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        parts += [octets[at : at + digest.CHUNK] for at in range(0, tensor.nbytes, digest.CHUNK)]

    def proof() -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(leaf, parts))
        copy_tensors(tensors, host)

    return [time_on_device(proof) for _ in range(count)]


def measure_saves(gigabytes: float, count: int, folder: Path) -> dict[str, Any]:
    model, optimizer = build_state(gigabytes)
    tensors = state_tensors(model, optimizer)
    figures: dict[str, Any] = {"bytes": sum(tensor.nbytes for tensor in tensors), "layers": len(model)}
    print_progress("floor")
    figures |= time_copies_both_ways(tensors, count)
    figures["step_s"] = [time_on_device(lambda: train_step(model, optimizer)) for _ in range(2 * count)]
    state = State(model, optimizer)
    for overlap, name in ((False, "save"), (True, "overlapped")):
        print_progress(name)
        with Manager(folder / name, overlap=overlap, compare=None) as manager:
            manager.restore(state)
            for number in range(2):  # slots are made and registered meanwhile
                assert manager.save(number, state, on_busy="wait").wait("durable", 300)
            figures[f"{name}_s"], figures[f"{name}_step_s"], figures[f"{name}_durable_s"] = [], [], []
            for number in range(2, count + 2):
                handle: Any = None

                def save(manager: Any = manager, number: int = number) -> None:
                    nonlocal handle
                    handle = manager.save(number, state)

                begin = time.perf_counter()
                figures[f"{name}_s"].append(time_call(save))
                figures[f"{name}_step_s"].append(time_on_device(lambda: train_step(model, optimizer)))
                assert handle.wait("durable", 300), handle
                figures[f"{name}_durable_s"].append(time.perf_counter() - begin)
        shutil.rmtree(folder / name)
    print_progress("torch.save and dcp.async_save")
    state_dicts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    file = Path("/dev/shm", f"hpk-bench-{os.getpid()}")
    try:
        figures["torch_save_s"] = [time_on_device(lambda: torch.save(state_dicts, file)) for _ in range(2)]
    finally:
        file.unlink(missing_ok=True)
    try:
        figures["dcp_s"] = time_pinned_dcp_saves(state_dicts, count, folder)
    except Exception as err:
        figures["dcp_error"] = f"{type(err).__name__}: {err}"[:300]
    return figures


def time_pinned_dcp_saves(state_dicts: Any, count: int, folder: Path) -> list[float]:
    """The calls of torch's asynchronous save after the first, one after the other."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import BlockingAsyncStager

    stager = BlockingAsyncStager(cache_staged_state_dict=True)
    taken = []
    for number in range(count + 1):
        directory = folder / f"dcp-{number}"
        begin = time.perf_counter()
        response: Any = dcp.async_save(state_dicts, checkpoint_id=directory, async_stager=stager, no_dist=True)
        taken.append(time.perf_counter() - begin)
        getattr(response, "upload_completion", response).result()
        shutil.rmtree(directory)
    return taken[1:]


def save_and_kill_self(gigabytes: float, folder: Path) -> None:
    """A process that saved and is killed."""
    model, optimizer = build_state(gigabytes)
    state, manager = State(model, optimizer), Manager(folder / "hot", compare=None)
    manager.restore(state)
    assert manager.save(0, state).wait("durable", 300)
    assert manager.save(1, state).wait("captured", 300)
    size = sum(tensor.nbytes for tensor in state_tensors(model, optimizer))
    print(json.dumps({"sum": tensor_sums(model, optimizer), "bytes": size}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def tensor_sums(model: Any, optimizer: Any) -> list[float]:
    return [float(tensor.double().sum()) for tensor in state_tensors(model, optimizer)]


def restore_and_print(gigabytes: float, folder: Path, *, die: bool) -> None:
    """A restore in a new process; from memory where one was left."""
    model, optimizer = build_state(gigabytes)
    tensors = state_tensors(model, optimizer)
    proved = time_digest_and_copy(tensors, 3)
    with torch.no_grad():
        for tensor in tensors:
            tensor.zero_()
    state = State(model, optimizer)
    begin = time.perf_counter()
    manager = Manager(folder / "hot", compare=None)
    made = time.perf_counter()
    got: Any = manager.restore(state)
    torch.cuda.synchronize()
    taken = time.perf_counter() - made
    report = {"tier": got.tier, "step": got.step, "manager_s": made - begin, "restore_s": taken, "proof_s": proved}
    print(json.dumps({**report, "sum": tensor_sums(model, optimizer)}), flush=True)
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    manager.close()


def run_role_in_subprocess(role: str, gigabytes: float, folder: Path) -> dict[str, Any]:
    print_progress(f"restores: {role}")
    command = [sys.executable, __file__, "--gigabytes", str(gigabytes), "--folder", str(folder), "--role", role]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{role}: ended with {done.returncode} and said nothing")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def measure_restores(gigabytes: float, count: int, folder: Path) -> dict[str, Any]:
    saved = run_role_in_subprocess("leave", gigabytes, folder)
    hot = [run_role_in_subprocess("hot", gigabytes, folder) for _ in range(count)]
    last = run_role_in_subprocess("end", gigabytes, folder)
    cold = [run_role_in_subprocess("end", gigabytes, folder)]
    assert all(sample["sum"] == saved["sum"] for sample in [*hot, last]), "a hot restore is not what was saved"
    return {
        "bytes": saved["bytes"],
        "hot_tier": [sample["tier"] for sample in hot],
        "hot_s": [sample["restore_s"] for sample in hot],
        "hot_manager_s": [sample["manager_s"] for sample in hot],
        "proof_s": [min(sample["proof_s"]) for sample in hot],
        "cold_tier": [sample["tier"] for sample in cold],
        "cold_s": [sample["restore_s"] for sample in cold],
    }


def print_figures(figures: dict[str, Any]) -> None:
    size = figures["bytes"] / 1e9

    def middle(name: str) -> float:
        return float(statistics.median(figures[name]))

    def line(label: str, seconds: float, more: str = "") -> None:
        print(f"  {label:44} {seconds:8.3f} s {size / seconds:8.2f} GB/s   {more}")

    print(f"{figures['device']}, torch {figures['torch']}, {figures['cores']} cores; a state of {size:.2f} GB")
    if "save_s" in figures:
        floor = middle("floor_s")
        line("floor: device to registered memory", floor)
        line("registered memory to device", middle("up_s"))
        line("save, blocking", middle("save_s"), f"over floor {middle('save_s') / floor:.2f}")
        line("save, overlapped: the call", middle("overlapped_s"))
        print(f"  {'a step alone':44} {middle('step_s'):8.3f} s")
        for name in ("save", "overlapped"):
            print(f"  {f'a step after a save, {name}':44} {middle(f'{name}_step_s'):8.3f} s")
            line(f"until durable, {name}", middle(f"{name}_durable_s"))
        line("torch.save to /dev/shm", min(figures["torch_save_s"]))
        if "dcp_s" in figures:
            line("torch's dcp.async_save, pinned: the call", middle("dcp_s"))
        else:
            print(f"  dcp.async_save: {figures['dcp_error']}")
    if "hot_s" in figures:
        line("digest, then copy to the device", middle("proof_s"))
        line("hot restore", middle("hot_s"), f"over proof {middle('hot_s') / middle('proof_s'):.2f}")
        line("cold restore, page cache", middle("cold_s"))
        print(f"  tiers: {' '.join(figures['hot_tier'])}; {' '.join(figures['cold_tier'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", choices=["saves", "restores"])
    parser.add_argument("--role", choices=["leave", "hot", "end"], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not torch.cuda.is_available():
        print("not run: no CUDA device")
        return
    if args.role == "leave":
        save_and_kill_self(args.gigabytes, args.folder)
    elif args.role:
        restore_and_print(args.gigabytes, args.folder, die=args.role == "hot")
    else:
        with tempfile.TemporaryDirectory(prefix="hpk-gpu-", dir=args.folder) as name:
            folder = Path(name)
            figures: dict[str, Any] = {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "cores": len(os.sched_getaffinity(0)),
            }
            if args.only != "restores":
                figures |= measure_saves(args.gigabytes, args.saves, folder)
                torch.cuda.empty_cache()
            if args.only != "saves":
                figures |= measure_restores(args.gigabytes, max(2, args.saves // 2), folder)
        if args.json:
            print(json.dumps(figures))
        else:
            print_figures(figures)


if __name__ == "__main__":
    main()
