"""What must not grow: the search among many checkpoints, the start of the command, memory and descriptors over saves.

    python lab/programs/scale.py [--checkpoints 10000] [--saves 1000] [--dir DIR]

Prints one JSON object. `newest_valid` is the search for the newest valid checkpoint with all its bytes verified, in a
new process, with the page cache dropped (root only) and warm. `ls` is the wall time of the whole command on a root
with one checkpoint. Memory is what is private to a process, in bytes; `after` is taken when the given part of the
saves is done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_lab.checkpoint_bench import machine, usage

SEARCH = """
import sys, time
from hyperpod_kit.checkpoint.repository import selection
begin = time.perf_counter()
found = selection.newest_valid(sys.argv[1])
print(time.perf_counter() - begin, found.step)
"""


def build_state() -> State:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
    return State(layers, torch.optim.AdamW(layers.parameters()))


def save_durable(manager: Manager, step: int, state: State) -> str:
    handle = manager.save(step, state)
    if not handle.wait("durable", 60) or handle.checkpoint_id is None:
        raise SystemExit(f"the save of step {step} is {handle.state}: {handle.reason}")
    return handle.checkpoint_id


def create_one_checkpoint(root: Path, step: int) -> str:
    """A root with one real checkpoint; its attempt."""
    manager, state = Manager(root), build_state()
    manager.restore(state)
    attempt = save_durable(manager, step, state)
    manager.close()
    return attempt


def measure_discovery(directory: Path, count: int) -> dict[str, object]:
    """Time the search for a real checkpoint that is newer than `count` - 1 others, which are not looked into."""
    root = directory / "many"
    real = root / create_one_checkpoint(root, 77)
    body = (real / "MANIFEST.json").read_bytes()
    for number in range(count - 1):
        folder = root / f"seq-{number:06d}.step-{number:010d}.e0-abcdef"
        folder.mkdir()
        (folder / "MANIFEST.json").write_bytes(body)
    times: dict[str, object] = {"checkpoints": count}
    for kind in ("dropped", "warm"):
        taken = []
        for _ in range(5):
            if kind == "dropped" and machine.empty_page_cache_and_name_method([]) != "dropped":
                break
            out = subprocess.run([sys.executable, "-c", SEARCH, str(root)], check=True, capture_output=True, text=True)
            seconds, step = out.stdout.split()
            if step != "77":
                raise SystemExit(f"found step {step}, expected 77")
            taken.append(float(seconds))
        times[f"newest_valid_{kind}_s"] = taken
    shutil.rmtree(root)
    return times


def measure_ls_command(directory: Path) -> dict[str, object]:
    root = directory / "one"
    create_one_checkpoint(root, 1)
    taken = []
    for _ in range(11):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "hyperpod_kit.cli.main", "checkpoint", "ls", str(root)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        taken.append(time.perf_counter() - begin)
    return {"ls_s": taken, "ls_median_s": statistics.median(taken)}


def measure_many_saves(directory: Path, saves: int) -> dict[str, object]:
    """Private memory and descriptors of trainer and agent, ten times over the saves; and the most that both together
    had open at one moment, looked for every 20 ms, files that are being written included."""
    root = directory / "soak"
    trainer_pid = os.getpid()
    before = usage.descriptor_count(trainer_pid)
    manager, state = Manager(root), build_state()
    manager.restore(state)
    (agent,) = usage.find_child_agent_pids()
    rows = []
    previous = None
    with usage.Watch([trainer_pid, agent]) as watch:
        for number in range(saves):
            attempt = save_durable(manager, number, state)
            if previous is not None:
                shutil.rmtree(root / previous, ignore_errors=True)
            previous = attempt
            if (number + 1) % max(1, saves // 10) == 0:
                rows.append(
                    {
                        "after": number + 1,
                        "trainer": usage.anonymous_memory_bytes(trainer_pid),
                        "agent": usage.anonymous_memory_bytes(agent),
                        "trainer_descriptors": usage.descriptor_count(trainer_pid) - before,
                        "agent_descriptors": usage.descriptor_count(agent),
                    }
                )
    manager.close()
    return {"saves": saves, "rows": rows, "most_descriptors_at_once": watch.together - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--saves", type=int, default=1_000)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-scale-", dir=args.dir) as directory:
        base = Path(directory)
        os.environ["HPK_SHM_DIR"] = tempfile.mkdtemp(prefix="hyperpod-kit-scale-", dir="/dev/shm")
        try:
            print(
                json.dumps(
                    {
                        "discovery": measure_discovery(base, args.checkpoints),
                        "start": measure_ls_command(base),
                        "soak": measure_many_saves(base, args.saves),
                    },
                    indent=1,
                )
            )
        finally:
            shutil.rmtree(os.environ["HPK_SHM_DIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
