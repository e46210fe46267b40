#!/usr/bin/env python3
"""Saves to memory at one interval and to storage at a longer one, beside all saves to storage: bytes, stall, and what a
kill loses.

    sudo python lab/programs/two_cadences.py DIR [--mb 100] [--ranks 2] [--rate 100] [--steps 500] [--kills 50] [--json]

DIR lies on a disk that is throttled to `--rate` MB/s for all ranks and agents together (blkio, cgroup v1, root). First
a run of `--steps` of each kind that ends by itself; then, of each kind, one run that is killed at random moments: all
ranks, and every other time their agents too, as at the end of a step that Slurm tracks by control group. A step counts
as lost that was completed on all ranks and is done again. Every element is compared after every restore.
Exit codes: 0 at most `every` - 1 steps lost with two cadences, 1 more, or a wrong element.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import two_cadences_trainer

CONTEXT = multiprocessing.get_context("forkserver")
# A rank is started so often that the import of torch would be all of the time.
_MANAGER = ("manager", "capture.staging", "restore.recovered_snapshots")
CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed", *(f"hyperpod_kit.checkpoint.{name}" for name in _MANAGER)]
)
BLKIO = Path("/sys/fs/cgroup/blkio")
AGENT = b"hyperpod_kit.checkpoint.agent.agent_main"
PATIENCE = 300.0


@contextlib.contextmanager
def throttled_group(directory: Path, rate: float) -> Iterator[str]:
    """A control group whose processes write to the disk below `directory` with `rate` MB/s; "" for rate 0."""
    if not rate:
        yield ""
        return
    group = BLKIO / f"hpk-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        number = os.stat(directory).st_dev
        limit = f"{os.major(number)}:{os.minor(number)} {int(rate * 1e6)}"
        (group / "blkio.throttle.write_bps_device").write_text(limit)
        yield str(group)
    finally:
        end = time.monotonic() + PATIENCE
        while group.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def group_bytes_written(group: str) -> int | None:
    """What its processes have written to disks."""
    if not group:
        return None
    lines = (Path(group) / "blkio.throttle.io_service_bytes").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines if " Write " in line)


@dataclass
class Run:
    """Ranks of one run below `base`, started and ended again and again. `storage_every` 0: all saves go to storage."""

    base: Path
    ranks: int
    mb: float
    step_ms: float
    every: int
    storage_every: int
    group: str = ""
    wait: bool = False
    _number: int = 0
    _processes: list[BaseProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.base / "shm").mkdir(parents=True)

    def start_ranks(self, steps: int = 10**9) -> None:
        self._number += 1
        env = {"HPK_SHM_DIR": str(self.base / "shm"), "GLOO_SOCKET_IFNAME": "lo", "HPK_AGENT_LINGER": "20"}
        common = [str(self.base / "root"), f"--world={self.ranks}", f"--mb={self.mb}"]
        common += [f"--steps={steps}", f"--step-ms={self.step_ms}", f"--every={self.every}"]
        common += [f"--storage-every={self.storage_every}", f"--throttle={self.group}"]
        common += [f"--store={self.base / f'store-{self._number}'}"]
        if self.wait:
            common += ["--wait"]
        self._processes = [
            CONTEXT.Process(
                target=two_cadences_trainer.run_rank_and_exit,
                args=([*common, f"--rank={rank}", f"--told={self._events_path(rank)}"], env, str(self.base / "output")),
                daemon=True,
            )
            for rank in range(self.ranks)
        ]
        for process in self._processes:
            process.start()

    def _events_path(self, rank: int) -> Path:
        return self.base / f"told-{self._number}.{rank}"

    def read_events(self, what: str, rank: int = 0) -> list[dict[str, Any]]:
        """Return the events of a kind that a rank of the newest start has written."""
        path = self._events_path(rank)
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [event for event in events if event["what"] == what]

    def wait_for_event(self, what: str, least: int = 0) -> dict[str, Any]:
        """Wait for such an event of every rank, of step `least` or later; return that of the slowest rank.

        Raises RuntimeError.
        """
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            newest = [self.read_events(what, rank)[-1:] for rank in range(self.ranks)]
            if all(newest) and all(events[0].get("step", least) >= least for events in newest):
                return min((entry[0] for entry in newest), key=lambda entry: entry.get("step", 0))
            if any(process.exitcode not in (None, 0) for process in self._processes):
                break
            time.sleep(0.002)
        raise RuntimeError(f"no {what!r}: {(self.base / 'output').read_text()[-2000:]}")

    def kill_ranks(self, *, agents: bool) -> int:
        """SIGKILL all ranks, and their agents with `agents`; returns the step that they had reached."""
        for process in self._processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
        reached = min(self.read_events("begins", rank)[-1]["step"] for rank in range(self.ranks))
        if agents:
            self.kill_agents()
        for process in self._processes:
            process.kill()
            process.join()
        return int(reached)

    def find_agents(self) -> list[int]:
        """The agents that live on this run's shared memory."""
        variable = f"HPK_SHM_DIR={self.base / 'shm'}".encode()
        pids = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if not entry.isdigit() or AGENT not in Path(f"/proc/{entry}/cmdline").read_bytes():
                    continue
                if variable in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    pids.append(int(entry))
        return pids

    def kill_agents(self) -> None:
        for pid in self.find_agents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill all ranks and agents of this run."""
        for process in self._processes:
            process.kill()
            process.join()
        end = time.monotonic() + PATIENCE
        while self.find_agents() and time.monotonic() < end:
            self.kill_agents()
            time.sleep(0.02)


def measure_undisturbed(run: Run, steps: int) -> dict[str, Any]:
    """One run to its end: bytes on storage, stall of the saves, time of the steps."""
    before = group_bytes_written(run.group)
    run.start_ranks(steps)
    begin, first = time.monotonic(), run.wait_for_event("begins")["step"]
    run.wait_for_event("begins", first + steps - 1)
    trained = time.monotonic() - begin
    closed = run.wait_for_event("closed")
    written = group_bytes_written(run.group)
    written_mb = None
    if written is not None and before is not None:
        written_mb = round((written - before) / 1e6)
    saves = []
    for rank in range(run.ranks):
        saves += run.read_events("saved", rank)
    stalls = [event["stall_ms"] for event in saves if not event["skipped"]]
    return {
        "steps": steps,
        "seconds": round(trained, 1),
        "saves": len(saves) // run.ranks,
        "skipped": closed["skipped"],
        "durable": closed["durable"],
        "written_mb": written_mb,
        "stall_ms_median": round(statistics.median(stalls), 1),
        "stall_ms_worst": round(max(stalls), 1),
        "stall_percent": round(sum(stalls) / run.ranks / 10 / trained, 2),
    }


def measure_kills(run: Run, kills: int, seed: int, *, least: int = 1, most: int = 40) -> dict[str, Any]:
    """One run that is killed so often, each time `least` to `most` steps after its start: what each kill lost."""
    dice = random.Random(seed)
    lost, tiers, wrong = [], [], 0
    reached = 0
    for number in range(kills + 1):
        run.start_ranks()
        got = run.wait_for_event("restored")
        wrong += sum(run.read_events("restored", rank)[-1]["wrong"] for rank in range(run.ranks))
        if number:
            lost.append(reached - got["next"])
            tiers.append(got["tier"])
        run.wait_for_event("begins", got["next"] + dice.randint(least, most))
        time.sleep(dice.random() * run.step_ms / 1000.0)
        reached = run.kill_ranks(agents=number % 2 == 1)
    return {
        "kills": len(lost),
        "lost_most": max(lost),
        "lost_mean": round(statistics.mean(lost), 1),
        "lost": lost,
        "tiers": {tier: tiers.count(tier) for tier in sorted(set(tiers))},
        "wrong_elements": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mb", type=float, default=100.0, help="state of each rank")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s of the disk, 0: as it is")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--storage-every", type=int, default=250)
    parser.add_argument("--kills", type=int, default=50, help="of each kind, 0: none")
    parser.add_argument("--only", choices=("every", "two cadences"), help="one kind of run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    parts = ["undisturbed"]
    if args.kills:
        parts.append("killed")
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, throttled_group(
        Path(directory), args.rate
    ) as group:
        shared = Path(tempfile.mkdtemp(prefix="hpk-cadences-", dir="/dev/shm"))
        try:
            for name, storage_every in (("every", 0), ("two cadences", args.storage_every)):
                if args.only not in (None, name):
                    continue
                for part in parts:
                    base = Path(directory) / f"{name} {part}".replace(" ", "-")
                    run = Run(base, args.ranks, args.mb, args.step_ms, args.every, storage_every, group)
                    (base / "shm").rmdir()
                    (shared / base.name).mkdir()
                    (base / "shm").symlink_to(shared / base.name)
                    try:
                        if part == "undisturbed":
                            figures[f"{name}, {part}"] = measure_undisturbed(run, args.steps)
                        else:
                            figures[f"{name}, {part}"] = measure_kills(run, args.kills, args.seed)
                    finally:
                        run.close()
                        shutil.rmtree(base, ignore_errors=True)
                        shutil.rmtree(shared / base.name, ignore_errors=True)
                    print(f"{name}, {part}: {json.dumps(figures[f'{name}, {part}'])}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(shared, ignore_errors=True)
    if args.json:
        print(json.dumps(figures))
    kills_with_two_cadences = figures.get("two cadences, killed", {"lost_most": 0, "wrong_elements": 0})
    if kills_with_two_cadences["lost_most"] >= args.every:
        return 1
    if kills_with_two_cadences["wrong_elements"]:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
