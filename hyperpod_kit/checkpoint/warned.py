"""A warning signal that came to some rank, as all ranks know it after the same step.

Slurm tells the processes of a step one after another, and not each of them where a node hangs: who saved as soon as he
is told would save another step than his neighbour. So each step asks all ranks, and hears the answer in the next one:
the reduction of one number runs beside training, and nobody waits for it.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.collectives import Ranks

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""What `--signal=USR1@…` and a preemption send."""

AGAIN = os.EX_TEMPFAIL
"""With this a rank ends that has saved and wants to be started again: `job run` queues the job once more."""


class Warned:
    """Hears SIGUSR1 and SIGTERM from `listen` to `let_go`, in the place of who heard them before; nothing where it is
    not `wanted`. Every rank makes it. Raises ValueError in another thread than the main one, where none can be heard.
    """

    def __init__(self, ranks: Ranks, *, wanted: bool) -> None:
        if wanted and threading.current_thread() is not threading.main_thread():
            raise ValueError("save_on_signal: make the Manager in the main thread, no other hears signals")
        self._pid = os.getpid()
        self._wanted = wanted
        self._heard = self._over = False
        self.found = False
        self._group = ranks.beside() if wanted and not ranks.alone else None
        self._asked: tuple[torch.Tensor, Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """From now on."""
        for number in SIGNALS if self._wanted else ():
            before = signal.signal(number, self._hear)
            self._before[number] = signal.SIG_DFL if before is None else before

    def came(self) -> bool:
        """Whether a signal has come to any rank, the same on all; `found` says it once more. Several ranks know it one
        call after the one that told it. Every rank calls it once a step."""
        if self._group is None:
            self.found = self._heard
            return self.found
        if self._asked is not None:
            number, under_way = self._asked
            under_way.wait()
            self.found = self.found or bool(number.item())
        number = torch.tensor([int(self._heard)], dtype=torch.int32, device="cpu")
        self._asked = number, dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return self.found

    def let_go(self) -> None:
        """Who heard the signals before hears them again. Where one was found nobody does: this process is about to end
        with 75, and Slurm and `job run` may both tell it, and `srun` what it has heard. Twice is once."""
        self._over = True
        for number, before in self._before.items():
            if signal.getsignal(number) == self._hear:
                # Ignored, not heard: Python takes its handlers away before it has ended, and then a signal kills.
                signal.signal(number, signal.SIG_IGN if self.found else before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid and (self.found or not self._over):
            self._heard = True
            return
        # A forked child (of a loader, for example) is asked by nobody, and a framework that puts back the handlers it
        # found may put back this one: both do what they would without us.
        signal.signal(number, self._before[signal.Signals(number)])
        os.kill(os.getpid(), number)
