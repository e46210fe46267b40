"""How often a fresh rehearsal comes up healthy: up, upload, create-cluster, validate-mounts, delete, down, many times.

    sudo python lab/programs/fresh_rehearsals.py [--rounds 30] [--name fresh] [--json]

Each round is a rehearsal of its own from `up` to `down`: the first mount of an access point, which several nodes make
at once, happens once in the life of a file system. A round counts when `validate-mounts` exits 0 and every mount of
every node is ok right after `create-cluster --wait`. Exit code 1 when any round does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "examples/demo"), str(REPOSITORY)]

from driver import CONFIG, DemoError, Driver, wait_until  # noqa: E402

STEPS = ("up", "create", "validate", "delete", "down")


def _sick_mounts(node: Dict[str, Any]) -> List[str]:
    mounts = [mount for mount in node["mounts"] if mount["state"] != "ok"]
    return [f"{node['node']}: {mount['name']} {mount['state']}: {mount['detail']}" for mount in mounts]


def run_rehearsal_round(name: str, logs: Path) -> Dict[str, Any]:
    """Seconds of each step, and `sick`: what was not ok, one line each."""
    driver = Driver(name, logs)
    round_: Dict[str, Any] = {"sick": []}
    started_at = [time.monotonic()]

    def done(step: str) -> None:
        round_[step] = round(time.monotonic() - started_at[0], 2)
        started_at[0] = time.monotonic()

    try:
        driver.up({})
        done("up")
        driver.kit("upload", str(CONFIG))
        driver.kit("create-cluster", str(CONFIG), "--wait", timeout=400)
        done("create")
        report = driver.data("validate-mounts", str(CONFIG), check=False)
        for node in report["nodes"]:
            round_["sick"] += _sick_mounts(node)
        if not report["healthy"] and not round_["sick"]:
            round_["sick"] = ["validate-mounts: not healthy"]
        done("validate")
        driver.kit("delete-cluster", str(CONFIG), "--yes")
        wait_until(
            "end of the cluster", lambda: not driver.aws("sagemaker", "list-clusters")["ClusterSummaries"], timeout=60
        )
        done("delete")
    except DemoError as err:
        round_["sick"].append(str(err))
    finally:
        started_at[0] = time.monotonic()
        driver.down()
        done("down")
    return round_


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--name", default="fresh", help="of the rehearsal, which must not be up")
    parser.add_argument("--json", action="store_true", help="print the rounds as JSON, the progress to stderr")
    options = parser.parse_args()
    rounds: List[Dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-fresh-") as logs:
        for number in range(1, options.rounds + 1):
            rounds.append(run_rehearsal_round(options.name, Path(logs)))
            times = "  ".join(f"{step} {rounds[-1][step]:.1f}" for step in STEPS if step in rounds[-1])
            print(f"{number:3}  {'; '.join(rounds[-1]['sick']) or 'healthy'}  ({times} s)", file=sys.stderr, flush=True)
    healthy = sum(not round_["sick"] for round_ in rounds)
    if options.json:
        print(json.dumps({"healthy": healthy, "rounds": rounds}, indent=1))
    else:
        medians = []
        for step in STEPS:
            seconds = [round_[step] for round_ in rounds if step in round_]
            if seconds:
                medians.append(f"{step} {statistics.median(seconds):.1f}")
        print(f"{healthy} of {len(rounds)} healthy; medians in seconds: {', '.join(medians)}")
    if healthy != len(rounds):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
