"""How long the creation of a node with 120 mounts takes, made side by side and one after the other.

    sudo python lab/programs/many_mounts.py [--efs 100] [--s3 20] [--passes 3] [--json]

Boots a controller and a worker from examples/every-mount.json whose mounts are so many of EFS and of Mountpoint. The
first figure is the creation's own; then all mounts of the worker are taken away and made again by `node apply`, in turn
side by side and one after the other. Seconds are those of all mount steps together, as status.json has them: from the
first one's start until every mount has answered once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "examples/demo"), str(REPOSITORY)]

from driver import Driver  # noqa: E402

EXAMPLE = REPOSITORY / "examples/every-mount.json"
WORKER = "storage-worker/0"
SIDE_BY_SIDE, ONE_BY_ONE = "side by side", "one after the other"
APPLY = "/opt/hyperpod-kit/current/bin/hyperpod-kit node apply"
APPLY_ONE_BY_ONE = """python3 -I -S -c '
import sys
sys.path.insert(0, "/opt/hyperpod-kit/current/lib")
from hyperpod_kit.node.mounts import bring_up
bring_up.BATCH = 1
from hyperpod_kit.node.cli import main
sys.exit(main(["apply"]))'
"""
TAKE_AWAY = """
systemctl stop hyperpod-kit-health.timer hyperpod-kit-health.service
systemctl list-units --plain --no-legend --all 'hyperpod-kit-mount-*' 'hyperpod-kit-s3-*' |
  awk '{print $1}' | xargs --no-run-if-empty systemctl stop
awk '$2 ~ "^/many/" {print $2}' /proc/mounts | xargs --no-run-if-empty -n 1 umount
! grep -q " /many/" /proc/mounts
"""


def make_config(efs: int, s3: int) -> Dict[str, Any]:
    """Return the example with so many mounts of two of its kinds, all on the worker alone."""
    values: Dict[str, Any] = json.loads(EXAMPLE.read_text())
    by_kind = {mount["kind"]: mount for mount in values["hyperpod_kit"]["mounts"]}
    counts = {"efs": efs, "mountpoint-s3": s3}
    values["hyperpod_kit"]["mounts"] = [
        {**by_kind[kind], "name": f"{kind[:3]}{number}", "path": f"/many/{kind[:3]}{number}", "roles": ["compute"]}
        for kind, count in counts.items()
        for number in range(count)
    ]
    return values


def read_mount_seconds(driver: Driver) -> float:
    """Return the seconds of all mount steps of the worker's last `node apply`. Raises RuntimeError when one failed."""
    status = json.loads(driver.on(WORKER, "cat /var/lib/hyperpod-kit/status.json"))
    steps = [step for step in status["steps"] if step["step"].startswith("mount:")]
    failed = [step["step"] for step in steps if step["status"] == "failed"]
    if failed:
        raise RuntimeError(f"failed: {', '.join(failed)}")
    return float(sum(step["duration_ms"] for step in steps) / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--efs", type=int, default=100)
    parser.add_argument("--s3", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("machines are root's: sudo")
    seconds: Dict[str, List[float]] = {SIDE_BY_SIDE: [], ONE_BY_ONE: []}
    with tempfile.TemporaryDirectory() as directory:
        driver = Driver("many-mounts", Path(directory))
        try:
            driver.up({})
            driver.config = Path(directory) / "provisioning_parameters.json"
            driver.config.write_text(json.dumps(make_config(args.efs, args.s3)))
            driver.kit("upload", str(driver.config))
            driver.kit("create-cluster", str(driver.config), "--wait", "--timeout", "900", timeout=1000)
            creation = read_mount_seconds(driver)
            print(f"creation: {creation:.1f} s", file=sys.stderr, flush=True)
            for _ in range(args.passes):
                for name, command in ((ONE_BY_ONE, APPLY_ONE_BY_ONE), (SIDE_BY_SIDE, APPLY)):
                    driver.on(WORKER, TAKE_AWAY, timeout=600)
                    driver.on(WORKER, command, timeout=900)
                    seconds[name].append(read_mount_seconds(driver))
                    print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
        finally:
            driver.down()
    medians = {name: round(statistics.median(values), 1) for name, values in seconds.items()}
    if args.json:
        print(json.dumps({"mounts": args.efs + args.s3, "creation": creation, "seconds": seconds}, indent=1))
        return
    print(f"{args.efs + args.s3} mounts: creation {creation:.1f} s; {medians}")


if __name__ == "__main__":
    main()
