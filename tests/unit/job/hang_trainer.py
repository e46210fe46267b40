"""A trainer of two ranks that does what it is given: steps, and silences between or in them, in lockstep.

    hang_trainer.py PLAN MARKS

PLAN is JSON: {"first": step, "steps": [[kind, seconds], ...], "prints": bool, "hang": kind or null, "hang_at": step}.
Kinds: step, compile, restore, evaluation (told), silence (not told: a part of the step), save, close. At `hang_at` rank
1 stays in this kind for ever, and rank 0 waits for it in its next step, while both print. When it begins is written to
MARKS. Standard library only, so that hundreds can be at work on a small machine.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import ProgressWriter

PHASES = {"restore": Phase.RESTORE, "evaluation": Phase.EVALUATION, "save": Phase.SAVE, "close": Phase.CLOSE}
MOVES = ("restore", "close")
"""Phases in which bytes move."""


class Pair:
    """Both ranks end a step together, as in a collective."""

    def __init__(self, rank: int) -> None:
        address = f"\0hpk-hang-{os.environ['HPK_ATTEMPT']}-{os.environ['HPK_ATTEMPT_KEY'][:16]}"
        if rank == 0:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(address)
                listener.listen()
                self._other = listener.accept()[0]
            return
        self._other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                self._other.connect(address)
                return
            except ConnectionRefusedError:
                time.sleep(0.1)

    def meet(self) -> None:
        self._other.sendall(b"x")
        assert self._other.recv(1), "the other rank is gone"


def chatter() -> None:
    while True:
        print("NCCL watchdog: still waiting", flush=True)
        time.sleep(1.0)


class Rank:
    def __init__(self, plan: Dict[str, Any], rank: int, marks: str) -> None:
        self._plan, self._rank, self._marks = plan, rank, marks
        self._teller = ProgressWriter()
        self._pair = Pair(rank)

    def spend(self, kind: str, seconds: float, step: int) -> None:
        """Be in this phase for so long, or for ever."""
        hangs = self._plan["hang"] == kind and self._plan["hang_at"] == step
        if kind not in PHASES:
            self._wait(seconds, hangs)
            return
        with self._teller.report_phase_during(PHASES[kind]):
            end = time.monotonic() + seconds
            while kind in MOVES and not hangs and time.monotonic() < end:
                self._teller.report_phase_advance()
                time.sleep(min(2.0, max(0.0, end - time.monotonic())))
            self._wait(end - time.monotonic(), hangs)

    def _wait(self, seconds: float, hangs: bool) -> None:
        time.sleep(max(0.0, seconds))
        if hangs and self._rank == 1:
            with open(self._marks, "w") as file:
                file.write(repr(time.monotonic()))
            threading.Event().wait()

    def train(self) -> None:
        plan = self._plan
        step = plan["first"]
        self._pair.meet()
        for kind, seconds in plan["steps"]:
            if kind == "restore":
                self.spend(kind, seconds, step)
                self._teller.report_first_step(step)
                continue
            self.spend(kind, seconds, step)
            if kind in ("step", "compile"):
                self._pair.meet()
                self._teller.report_completed_step(step)
                step += 1
        self._pair.meet()
        self._teller.report_phase(Phase.OVER)


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    if plan["prints"]:
        threading.Thread(target=chatter, daemon=True).start()
    Rank(plan, int(os.environ["SLURM_PROCID"]), sys.argv[2]).train()
    return 0


if __name__ == "__main__":
    sys.exit(main())
