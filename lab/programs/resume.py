"""From a rank's death to the first step after it, with a large checkpoint, on a Slurm of two nodes on loopback.

    python lab/programs/resume.py [--gigabytes 4] [--memory kept|lost] [--repeat 3] [--dir DIR]

Prints one JSON object. `fault_to_step_s` goes from the SIGKILL of rank 1 to the first step that all ranks have begun
again; `start_up_s` is the part of it in which a rank begins, imports torch and makes its weights. `restore_read` is
what the slower rank read from files while it restored, in bytes; shared memory is mapped and not counted. A last run
under strace counts what `job run` and its helpers read below the checkpoint root in all, before and after the death:
`job_run_read`. `lost` empties the shared memory at the death.
Needs root, Slurm and munge, strace for the count, and three times the gigabytes as memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.unit.job.private_slurm import PrivateSlurm, missing  # noqa: E402

RANKS = 2


def run_killed_job(
    slurm: PrivateSlurm, gigabytes: float, memory: str, directory: Path, trace: str = ""
) -> dict[str, Any]:
    directory.mkdir()
    shm = Path(tempfile.mkdtemp(prefix="hpk-bench-", dir="/dev/shm"))
    trainer = [
        sys.executable,
        str(Path(__file__).with_name("resume_trainer.py")),
        str(directory / "root"),
        str(directory / "once"),
    ]
    before = ":"
    if memory == "lost":
        before = (
            f"if [ -e {directory}/once ] && [ ! -e {directory}/lost ]; then touch {directory}/lost; rm -rf {shm}/*; fi"
        )
    script = directory / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH -N{RANKS} --ntasks-per-node=1 --auto-resume=1 -o {directory}/out\n"
        f"export HPK_SHM_DIR={shm} PYTHONPATH={ROOT} GLOO_SOCKET_IFNAME=lo\n"
        f"exec {trace} {sys.executable} -m hyperpod_kit.job.__main__ run --checkpoint-root {directory}/root -- "
        f"/bin/sh -c '{before}; exec {' '.join(trainer)} {gigabytes / RANKS}'\n"
    )
    try:
        job = slurm.sbatch(str(script), cwd=directory)
        end = time.monotonic() + 900
        while slurm.state(job) not in ("COMPLETED", "FAILED", "CANCELLED") and time.monotonic() < end:
            time.sleep(0.2)
        text = (directory / "out").read_text()
        if slurm.state(job) != "COMPLETED":
            raise SystemExit(text)
        events = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("bench: ")]
        if trace:
            return {"job_run_read": bytes_read_in_trace(directory)}
        return resume_figures(events)
    finally:
        shutil.rmtree(shm, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)


def bytes_read_in_trace(directory: Path) -> int:
    """Bytes of the root that a trace has seen read."""
    done = re.compile(rf"(?:read|pread64|readv|preadv)\(\d+<{re.escape(str(directory))}/root/[^>]*>.*= (\d+)")
    return sum(int(match[1]) for match in map(done.search, (directory / "trace").read_text().splitlines()) if match)


def resume_figures(events: list[dict[str, Any]]) -> dict[str, Any]:
    killed = next(event["t"] for event in events if event["what"] == "killed")
    after = [event for event in events if event["t"] > killed]
    restored = [event for event in after if event["what"] == "restored"]
    steps = [event for event in after if event["what"] == "step" and event["step"] == restored[0]["next"]]
    return {
        "fault_to_step_s": round(max(event["t"] for event in steps) - killed, 3),
        "start_up_s": round(max(event["start_up"] for event in after if event["what"] == "built"), 3),
        "restore_s": round(max(event["seconds"] for event in restored), 3),
        "tier": sorted({event["tier"] for event in restored}),
        "resumed_at": sorted({event["next"] for event in restored}),
        "restore_read": max(event["read"] for event in restored),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--memory", choices=("kept", "lost"), default="kept")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    base = Path(tempfile.mkdtemp(prefix="hpk-bench-", dir=args.dir))
    slurm = PrivateSlurm(base, nodes=RANKS, user=os.getuid())
    try:
        slurm.start()
        counted: dict[str, Any] = {}
        runs = [
            run_killed_job(slurm, args.gigabytes, args.memory, base / f"run-{number}") for number in range(args.repeat)
        ]
        if shutil.which("strace"):
            trace = f"strace -f -y -e trace=read,pread64,readv,preadv -o {base}/traced/trace"
            counted = run_killed_job(slurm, args.gigabytes, args.memory, base / "traced", trace)
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key.endswith(("_s", "_read"))}
    print(
        json.dumps(
            {"gigabytes": args.gigabytes, "memory": args.memory, "median": {**medians, **counted}, "runs": runs},
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
