"""srun for tests of fan-out without a Slurm: starts the tasks here, each a process, and all hear what it hears.

With FAN_OUT_TASK the task of that number is another program, `fan_out_task.py`, which does what FAN_OUT_DOES says.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

tasks = int(next(word for word in sys.argv if word.startswith("--ntasks=")).partition("=")[2])
after = next(place for place, word in enumerate(sys.argv) if word.startswith("--job-name="))
words = sys.argv[after + 1 :]
odd = int(os.environ.get("FAN_OUT_TASK", "-1"))
started = []
for number in range(tasks):
    other = [sys.executable, str(Path(__file__).with_name("fan_out_task.py")), *words[words.index("fan-out") + 2 :]]
    started.append(
        subprocess.Popen(
            other if number == odd else words,
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                "SLURM_PROCID": str(number),
                "SLURM_NTASKS": str(tasks),
                "SLURMD_NODENAME": f"n{number}",
            },
        )
    )


def forward() -> None:
    for line in sys.stdin.buffer:
        for one in started:
            with contextlib.suppress(OSError):
                assert one.stdin is not None
                one.stdin.write(line)
                one.stdin.flush()
    for one in started:
        with contextlib.suppress(OSError):
            assert one.stdin is not None
            one.stdin.close()


threading.Thread(target=forward, daemon=True).start()
for one in started:
    one.wait()
