#!/usr/bin/env python3
"""HyperPod's srun on one machine: with --auto-resume=1 a failed step is started again inside of the same srun.

Its words and their order are those of public logs; nothing of HyperPod itself can be had. The environment and the
arguments of the retry are those of the first launch, srun's port is another one. $STEP_RETRY_FAULT is a file with how
many faults of nodes are still to be found; without one a failure is none of the hardware's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAKE = Path(__file__).with_name("fake_srun.py")


def say(words: str) -> None:
    print(f"[Auto Resume] Info: JobID: {os.environ['SLURM_JOB_ID']} {words}", flush=True)


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--auto-resume=1"]
    retries = len(words) < len(sys.argv) - 1
    faults = Path(os.environ["STEP_RETRY_FAULT"])
    for attempt in range(100):
        env = {**os.environ, "SLURM_STEP_LAUNCHER_PORT": str(4000 + attempt)}
        code = subprocess.run([sys.executable, str(FAKE), *words], env=env).returncode
        if not code or not retries:
            return code
        say("Initiating communication with cluster agent to diagnose health of nodes")
        left = int(faults.read_text()) if faults.exists() else 0
        if not left:
            say("Response from cluster agent: ResumeAction=NONE")
            return code
        faults.write_text(str(left - 1))
        say("Response from cluster agent: ResumeAction=RETRYSTEP")
        say(f"Retrying step. Attempt number: {attempt + 1}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
