#!/usr/bin/env python3
"""srun on one machine: runs --ntasks or SLURM_NTASKS copies of the command, kills the others when one ends badly.

Writes each of its command lines to $FAKE_SRUN_LOG. With FAKE_SRUN_WAITS it kills none: each rank ends by itself, as
where all fail so soon that Slurm's signals come too late. Exit code: that of a killed rank, as with --kill-on-bad-exit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main() -> int:
    words = sys.argv[1:]
    with open(os.environ["FAKE_SRUN_LOG"], "a") as log:
        log.write(json.dumps(words) + "\n")
    begin = next(index for index, word in enumerate(words) if word.startswith("/"))
    asked = [word.partition("=")[2] for word in words[:begin] if word.startswith("--ntasks=")]
    tasks = (asked or [os.environ["SLURM_NTASKS"]])[0]
    ranks = [
        subprocess.Popen(
            words[begin:],
            env={
                **os.environ,
                "SLURM_NTASKS": tasks,
                "SLURM_PROCID": str(rank),
                "SLURM_STEP_ID": "0",
                "SLURMD_NODENAME": f"n{rank + 1}",
            },
        )
        for rank in range(int(tasks))
    ]
    waits = "FAKE_SRUN_WAITS" in os.environ
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    worst = 0
    while any(rank.poll() is None for rank in ranks):
        codes = [rank.poll() for rank in ranks]
        worst = max([worst, *(abs(code) for code in codes if code)])
        if (worst and not waits) or stop:
            for rank in ranks:
                if rank.poll() is None:
                    # Slurm signals the whole tree: the wrapper and its command.
                    for child in children(rank.pid):
                        os.kill(child, signal.SIGTERM)
                    rank.terminate()
            time.sleep(0.1)
        time.sleep(0.01)
    return 143 if stop else max([worst, *(abs(rank.returncode) for rank in ranks)])


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())
