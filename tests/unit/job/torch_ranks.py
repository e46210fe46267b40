"""A training program as a rank of a Slurm step: what torchrun would say of ranks and addresses, from Slurm's words.

    torch_ranks.py PROGRAM [WORD...]

KILLS names a file with lines "RANK STEP SECONDS": at each start the next one is carried out. The rank kills itself from
a thread of its own, so many seconds after a checkpoint of that step or a later one was committed below ROOT: at its end
where that step was committed no earlier.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
import threading
from pathlib import Path

from hyperpod_kit.checkpoint.repository.format import layout

PORTS = 20
"""Of a test's rendezvous, from FIRST_PORT on: each start of the ranks has the next of them."""


def newest(root: Path) -> int:
    """The newest step that was committed; -1 for none."""
    names = [layout.parse_checkpoint_id(path.parent.name) for path in root.glob("*/MANIFEST.json")]
    return max((name.step for name in names if name is not None), default=-1)


def die(root: Path, step: int, seconds: float) -> None:
    pause = threading.Event()
    while newest(root) < step:
        pause.wait(0.005)
    pause.wait(seconds)  # somewhere in the steps and saves that follow
    os.kill(os.getpid(), signal.SIGKILL)


def end_with(pid: int) -> None:
    """Whom the step knows as this rank (warm_rank.py) may be killed."""
    select.select([os.pidfd_open(pid)], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    env = os.environ
    if "WARM_RANK" in env:
        threading.Thread(target=end_with, args=(int(env["WARM_RANK"]),), daemon=True).start()
    rank, start = env["SLURM_PROCID"], int(env["HPK_ATTEMPT"].rpartition(".")[2])
    env.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=env["SLURM_NTASKS"], LOCAL_WORLD_SIZE=env["SLURM_NTASKS"])
    env.update(SLURM_LOCALID=rank, SLURM_NODEID="0")  # Lightning asks these itself
    # A new attempt must not meet the sockets of the last one.
    port = int(env["FIRST_PORT"]) + start % PORTS
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    plan = [line.split() for line in Path(env["KILLS"]).read_text().splitlines()] if "KILLS" in env else []
    started = Path(env["STARTS"], f"{env['HPK_ATTEMPT']}.{rank}")
    started.touch()
    number = len(list(started.parent.glob(f"*.{rank}"))) - 1
    killers = []
    if number < len(plan) and plan[number][0] == rank:
        words = (Path(env["ROOT"]), int(plan[number][1]), float(plan[number][2]))
        killers.append(threading.Thread(target=die, args=words, daemon=True))
    for killer in killers:
        killer.start()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as python does with a program
    runpy.run_path(sys.argv[0], run_name="__main__")
    for killer in killers:  # training may be faster than its commits
        killer.join()


if __name__ == "__main__":
    main()
