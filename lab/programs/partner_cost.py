"""What copies in a partner's memory cost: step time, stall of a save, time until sealed, shared memory.

    python lab/programs/partner_cost.py [--ranks 2] [--megabytes 64] [--steps 40] [--every 5] [--rounds 3] [--json FILE]

Each rank is a node of its own on this machine: copies go over loopback, and both ends take this machine's cores, so the
figures are upper bounds of what a node pays. Three runs take turns: no saves, saves for memory, the same with partners.
A step is a fixed number of multiplications; all figures are medians over all steps (saves) of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from hyperpod_kit.checkpoint import Manager, State

KINDS = ("no saves", "memory", "memory, partners")
_WORK = 320


def rank_main(rank: int, world: int, port: int, folder: str, kind: str, args: argparse.Namespace) -> None:
    shm = Path(folder, f"node-{rank}")
    shm.mkdir(exist_ok=True)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        HPK_SHM_DIR=str(shm),
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    extra = {"mine": torch.zeros(args.megabytes << 20, dtype=torch.uint8)}
    state = State(extra=extra)
    manager = Manager(folder + "/root", slots=3, partners=kind == KINDS[2])
    manager.restore(state)
    matrix = torch.randn(_WORK, _WORK)
    steps: list[float] = []
    stalls: list[float] = []
    sealed: list[float] = []
    waiting: tuple[float, Any] | None = None
    for number in range(args.steps):
        begin = time.perf_counter()
        for _ in range(30):
            matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.distributed.barrier()
        steps.append(time.perf_counter() - begin)
        extra["mine"][number] = 1
        if kind != KINDS[0] and number % args.every == args.every - 1:
            if waiting is not None:
                waiting[1].wait(timeout=120)
            begin = time.perf_counter()
            handle = manager.save(number, state, on_busy="wait", tier="memory")
            stalls.append(time.perf_counter() - begin)
            if number == args.steps - 1 or len(stalls) % 2 == 0:
                handle.wait(timeout=120)  # every second one is waited for, so that steps beside a copy are steps too
                sealed.append(time.perf_counter() - begin)
            waiting = begin, handle
    shm_bytes = sum(path.stat().st_blocks * 512 for path in shm.rglob("*") if path.is_file())
    report = {"step_s": steps, "stall_s": stalls, "sealed_s": sealed, "shm_mb": shm_bytes / 1e6}
    Path(folder, f"answer-{rank}.json").write_text(json.dumps(report))
    torch.distributed.barrier()
    manager.close()
    torch.distributed.destroy_process_group()


def measure_kind(kind: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-partners-", dir="/dev/shm") as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = multiprocessing.get_context("fork")
        ranks = [
            context.Process(target=rank_main, args=(rank, args.ranks, port, folder, kind, args))
            for rank in range(args.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(600)
            if process.exitcode != 0:
                raise SystemExit(f"{kind}: a rank ended with {process.exitcode}")
        reports = [json.loads(Path(folder, f"answer-{rank}.json").read_text()) for rank in range(args.ranks)]
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=64, help="state of a rank")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=5, help="steps between saves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="all figures, for a machine")
    args = parser.parse_args()
    samples: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    for _ in range(args.rounds):
        for kind in KINDS:
            for report in measure_kind(kind, args):
                for name, value in report.items():
                    samples_of_name = samples[kind].setdefault(name, [])
                    if isinstance(value, list):
                        samples_of_name.extend(value)
                    else:
                        samples_of_name.append(value)
    medians = {
        kind: {name: statistics.median(values) for name, values in rows.items() if values}
        for kind, rows in samples.items()
    }
    for kind, row in medians.items():
        print(f"{kind:<20}" + "  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    main()
