"""Steps that end at random moments, with a large state and a slow disk: what was captured on all ranks is on storage.

    python -m tests.cgroup.moments [--mb 2000] [--rate 100] [--moments 20] [--seed 1]
        [--minutes 30] [--ends FAILED,CANCELLED,...]

Prints a line per end and a table; exit code 1 when a capture was lost. As root, on a host with cgroups of version 1.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Dict, List

from tests.cgroup.ends import ENDS
from tests.cgroup.site import SavingJob, Site, a_site
from tests.support import capabilities
from tests.support.wait import until


def one(site: Site, state: str, mb: float, moment: float, memory: int, prover: Executor) -> Future[Dict[str, Any]]:
    """A job that is ended `moment` seconds after its second capture; its bytes are proved while the next one runs."""
    job = SavingJob(site, mb=mb, options=f"--mem={memory}")
    job.at_capture(2, 600)
    time.sleep(moment)
    ENDS[state](job)
    ended = job.ended(300)
    captured, at_end, began = job.captured(), job.committed(), time.monotonic()
    # As long as bytes move, however slow the disk: what two slots hold, and a minute.
    until(lambda: not site.left_in_memory(), 1200, what="freed memory")
    seconds = time.monotonic() - began

    def prove() -> Dict[str, Any]:
        durable = set(job.durable())
        shutil.rmtree(job.root)
        return {
            "end": state,
            "slurm": ended,
            "moment": round(moment, 2),
            "captured": len(captured),
            "of_the_epilog": len(set(captured) - set(at_end)),
            "lost": sorted(set(captured) - durable),
            "seconds": round(seconds, 1),
        }

    return prover.submit(prove)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=2000.0, help="of each of two nodes")
    parser.add_argument("--rate", type=float, default=100.0, help="MB a second that each may write; 0: any")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no job is begun")
    parser.add_argument("--ends", default=",".join(ENDS))
    args = parser.parse_args()
    lack = capabilities.reason_of(["slurm", "cgroup-v1", "system-python"])
    if lack:
        print(f"not run: {lack}")
        return 0
    draw, last = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    proofs: List[Future[Dict[str, Any]]] = []
    memory = int(args.mb * 2.5 + 1000)  # two slots and what the ranks need; a mapped state can be dropped
    span = min(30.0, 2 * args.mb / args.rate) if args.rate else 5.0
    with a_site(memory=memory, rate=int(args.rate * 1e6)) as site, ThreadPoolExecutor(1) as prover:
        for state in args.ends.split(","):
            for _ in range(args.moments):
                if time.monotonic() > last:
                    break
                proof = one(site, state, args.mb, draw.uniform(0.0, span), memory, prover)
                proof.add_done_callback(lambda done: print(json.dumps(done.result()), flush=True))
                proofs.append(proof)
                # A fast disk is full sooner than its checkpoints are proved: two ends' lie there at a time.
                if len(proofs) > 1:
                    proofs[-2].result()
        rows = [proof.result() for proof in proofs]
    return table(rows)


def table(rows: List[Dict[str, Any]]) -> int:
    print(f"\n{'end':14} {'runs':>5} {'captured':>9} {'by the Epilog':>14} {'lost':>5} {'longest':>8}")
    for state in dict.fromkeys(row["end"] for row in rows):
        mine = [row for row in rows if row["end"] == state]
        print(
            f"{state:14} {len(mine):5} {sum(row['captured'] for row in mine):9} "
            f"{sum(row['of_the_epilog'] for row in mine):14} {sum(len(row['lost']) for row in mine):5} "
            f"{max(row['seconds'] for row in mine):7.1f}s"
        )
    return 1 if any(row["lost"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
