"""Many real ranks over gloo on this machine: save, SIGKILL, hot and cold restore, restore by fewer. Right, and when.

    python lab/programs/many_ranks.py [--ranks 48] [--to 32] [--width 1024] [--dir DIR] [--json FILE]

FSDP2 and AdamW; each rank has random generators and an `extra` of its own. Every restore is compared with what was
saved: by as many ranks each rank's own pieces, its `extra` and its next random number, by fewer the whole tensors.
Times are of the slowest rank; all ranks share the cores of this machine, so they are no promise for another one.
Exit codes: 0 all right, 1 not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard  # here, so that it is imported once for all ranks

from hyperpod_kit.checkpoint import Manager, State

LAYERS = 4
DEADLINE = 300.0


def build_sharded_model(width: int) -> tuple[Any, Any]:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(model: Any, optimizer: Any, width: int) -> None:
    model(torch.randn(2, width)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def tensors_by_name(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    by_name = dict(model.named_parameters())
    for number, state in enumerate(optimizer.state.values()):
        by_name.update({f"{number}.{key}": value for key, value in state.items()})
    return by_name


def hex_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def tensor_bytes(tensor: Any) -> bytes:
    octets: bytes = tensor.detach().contiguous().numpy().tobytes()
    return octets


def local_digest(model: Any, optimizer: Any) -> str:
    """Of what this rank holds."""
    local = []
    for tensor in tensors_by_name(model, optimizer).values():
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        local.append(tensor_bytes(tensor))
    return hex_digest(b"".join(local))


def full_digest(model: Any, optimizer: Any) -> str:
    """Of the whole tensors, on every rank the same."""
    full = []
    for tensor in tensors_by_name(model, optimizer).values():
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
        full.append(tensor_bytes(tensor))
    return hex_digest(b"".join(full))


def rank_main(rank: int, world: int, port: int, folder: str, shm: str, task: str, width: int) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        HPK_SHM_DIR=shm,
    )
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    begin = time.monotonic()

    def lap(name: str) -> None:
        nonlocal begin
        torch.distributed.barrier()
        report[name], begin = time.monotonic() - begin, time.monotonic()

    torch.distributed.init_process_group("gloo")
    lap("process group")
    seed, mine = 99, None
    if task == "save":
        seed, mine = 7, rank
    torch.manual_seed(seed)
    model, optimizer = build_sharded_model(width)
    extra = {"mine": mine}
    state = State(model, optimizer, extra=extra)
    lap("model")
    manager = Manager(folder + "/root")
    lap("manager")
    got = manager.restore(state)
    lap("restore")
    report["tier"] = getattr(got, "tier", "")
    if task == "save":
        torch.manual_seed(1000 + rank)
        train_step(model, optimizer, width)
        lap("a step")
        handle = manager.save(1, state, on_busy="wait")
        lap("save returns")
        assert handle.wait("durable", DEADLINE)
        lap("durable")
    report["pieces"], report["whole"] = local_digest(model, optimizer), full_digest(model, optimizer)
    report["extra"], report["random"] = extra["mine"], float(torch.rand(1))
    Path(folder, f"{task}-{rank}.new").write_text(json.dumps(report))
    Path(folder, f"{task}-{rank}.new").rename(Path(folder, f"{task}-{rank}.json"))
    if task == "save":
        signal.pause()  # until it is killed
    manager.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_ranks(world: int, folder: Path, shm: Path, task: str, width: int) -> list[dict[str, Any]]:
    """Run the ranks of a task and return the report of each. Those that save are killed."""
    shm.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")  # so that torch is imported once
    ranks: list[BaseProcess] = [
        context.Process(target=rank_main, args=(rank, world, port, str(folder), str(shm), task, width))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    report_paths = [folder / f"{task}-{rank}.json" for rank in range(world)]
    end = time.monotonic() + DEADLINE
    try:
        while not all(path.exists() for path in report_paths):
            ended = [process.exitcode for process in ranks if process.exitcode not in (None, 0)]
            if ended or time.monotonic() > end:
                raise SystemExit(
                    f"{task}: exit codes {ended}, {sum(path.exists() for path in report_paths)} of {world} ready"
                )
            time.sleep(0.05)
        if task != "save":
            for process in ranks:
                process.join(max(0.0, end - time.monotonic()))
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [json.loads(path.read_text()) for path in report_paths]


def slowest_times(reports: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name, value in reports[0].items() if isinstance(value, float) and name != "random"]
    return {name: round(max(report[name] for report in reports), 3) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=48)
    parser.add_argument("--to", type=int, default=32, help="ranks of the last restore")
    parser.add_argument("--width", type=int, default=1024, help="of the four layers: 1024 makes 50 MB of state")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, help="all figures, for a machine")
    args = parser.parse_args()
    seconds_by_phase: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-ranks-", dir=args.dir) as name:
        folder = Path(name)

        def phase(do: str, world: int, shm: str, tier: str) -> list[dict[str, Any]]:
            reports = run_ranks(world, folder, folder / shm, do, args.width)
            seconds_by_phase[do] = slowest_times(reports)
            print(
                f"{do:<8}{world:>4} ranks  "
                + "  ".join(f"{key} {value:.2f} s" for key, value in seconds_by_phase[do].items())
            )
            tiers = {report["tier"] for report in reports}
            if tiers != {tier}:
                wrong.append(f"{do}: restored from {tiers}, expected {tier!r}")
            return reports

        def compare(do: str, reports: list[dict[str, Any]], saved: list[dict[str, Any]], *keys: str) -> None:
            for rank, (report, saved_report) in enumerate(zip(reports, saved)):
                wrong.extend(f"{do}: rank {rank} has another {key}" for key in keys if report[key] != saved_report[key])

        saved = phase("save", args.ranks, "shm", "")
        everything = ("pieces", "whole", "extra", "random")
        compare("hot", phase("hot", args.ranks, "shm", "memory"), saved, *everything)
        shutil.rmtree(folder / "shm")
        compare("cold", phase("cold", args.ranks, "shm", "storage"), saved, *everything)
        compare("fewer", phase("fewer", args.to, "fewer", "storage"), saved, "whole", "extra")
    print("\n".join(wrong) or "all as saved")
    if args.json:
        args.json.write_text(json.dumps({"times": seconds_by_phase, "wrong": wrong}, indent=1) + "\n")
    if wrong:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
