"""Time from a mount's fault to its repair, on a rehearsal node with every kind of mount.

    sudo python lab/programs/mount_repair.py [--interval 30] [--rounds 3] [--fault kill-daemon] [--json]

Boots two machines from examples/every-mount.json with that health interval. In each round all mounts of the worker are
broken at a moment of the interval that chance picks; a mount counts as repaired when one is there and answers.
What a mount-s3 daemon's own unit repairs (kill-daemon, Restart=always) is not waited for by any timer. Rounds are one
interval and a check apart, so that no back-off of the round before is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "examples/demo"), str(REPOSITORY)]

from driver import Driver, wait_until  # noqa: E402

from hyperpod_kit.model.mounts.kinds import KINDS  # noqa: E402
from hyperpod_rehearsal import boot, mount_faults, targets  # noqa: E402
from hyperpod_rehearsal.machines.machine import command_in_machine  # noqa: E402
from hyperpod_rehearsal.mount_faults import MountPoint  # noqa: E402

EXAMPLE = REPOSITORY / "examples/every-mount.json"
WORKER = "storage-worker/0"
FAULTS = ("kill-daemon", "unmount", "hang-daemon")
PATIENCE = 300.0


def is_serving(mount_point: MountPoint) -> bool:
    """Whether something is mounted there and statvfs of it succeeds within a second."""
    command = command_in_machine(
        mount_point.leader, ["timeout", "-s", "KILL", "1", "stat", "--file-system", mount_point.path]
    )
    return (
        mount_point.top_mount_type_and_source() is not None
        and subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    )


def fault_applies(fault: str, kind: str) -> bool:
    """Scratch has no daemon; of those that hang only mount-s3 is ours to kill, the others wait for their server."""
    traits = KINDS[kind].traits
    return bool({"unmount": True, "kill-daemon": not traits.local_disk, "hang-daemon": traits.service.daemon}[fault])


def break_and_time_repairs(mount_points: Dict[str, MountPoint], fault: str) -> Dict[str, float]:
    """Seconds to the repair of each kind that the fault is made on. Raises TimeoutError."""
    broken = {kind: at for kind, at in mount_points.items() if fault_applies(fault, kind)}
    started_at: Dict[str, float] = {}
    took: Dict[str, float] = {}
    for kind, at in broken.items():
        started_at[kind] = time.monotonic()
        mount_faults.FAULTS[fault](at)
    # A signal is not an event of the moment: repaired is what was seen broken first.
    for kind, at in broken.items():
        wait_until(f"fault of {kind}", lambda at=at: not is_serving(at), timeout=10, every=0.02)  # type: ignore[misc]
    while len(took) < len(broken):
        for kind, at in broken.items():
            if kind not in took and is_serving(at):
                took[kind] = time.monotonic() - started_at[kind]
        if time.monotonic() - max(started_at.values()) > PATIENCE:
            raise TimeoutError(f"{fault}: not repaired: {', '.join(sorted(set(broken) - set(took)))}")
        time.sleep(0.05)
    return took


def create_cluster(driver: Driver, directory: Path, interval: float) -> Tuple[Path, Dict[str, MountPoint]]:
    """Create the cluster; returns its configuration's path and its worker's mount points by kind."""
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["health"] = {"interval": interval, "deadline": min(5, interval / 2)}
    config = directory / "provisioning_parameters.json"
    config.write_text(json.dumps(values))
    driver.config = config
    driver.kit("upload", str(config))
    driver.kit("create-cluster", str(config), "--wait", "--interval", "1", "--timeout", "300")
    layout, data = boot.require_running(driver.name)
    node = targets.find_node(data, WORKER)
    paths = {mount["kind"]: mount["path"] for mount in values["hyperpod_kit"]["mounts"]}
    return config, {
        kind: mount_faults.mount_point_of_running_node(layout, node, path)
        for kind, path in {**paths, "lustre": "/fsx"}.items()
    }


def measure_repairs(args: argparse.Namespace) -> Dict[str, Dict[str, List[float]]]:
    """fault -> kind -> seconds, one for each round."""
    seconds_by_fault: Dict[str, Dict[str, List[float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        driver = Driver(f"repair-{args.interval:g}", Path(directory))
        try:
            driver.up({})
            config, spots = create_cluster(driver, Path(directory), args.interval)
            for fault in args.fault or FAULTS:
                for number in range(args.rounds):
                    time.sleep(args.interval + 5 + random.uniform(0, args.interval))
                    wait_until(
                        "healthy node",
                        lambda: driver.data("validate-mounts", str(config), check=False)["healthy"],
                        timeout=PATIENCE,
                    )
                    took = break_and_time_repairs(spots, fault)
                    for kind, seconds in took.items():
                        seconds_by_fault.setdefault(fault, {}).setdefault(kind, []).append(round(seconds, 1))
                    print(f"{fault} {number + 1}/{args.rounds}: {took}", file=sys.stderr, flush=True)
        finally:
            driver.down()
    return seconds_by_fault


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--interval", type=float, default=30.0, help="health.interval, seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="repeatable; all without it")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("machines are root's: sudo")
    seconds_by_fault = measure_repairs(args)
    if args.json:
        print(json.dumps({"interval": args.interval, "seconds": seconds_by_fault}, indent=1))
        return
    print(f"| fault (interval {args.interval:g} s) | kind | least | median | most |\n| --- | --- | --- | --- | --- |")
    for fault, kinds in seconds_by_fault.items():
        for kind, seconds in kinds.items():
            print(f"| {fault} | {kind} | {min(seconds)} | {statistics.median(seconds)} | {max(seconds)} |")


if __name__ == "__main__":
    main()
