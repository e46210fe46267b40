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

from hyperpod_kit.checkpoint.ranks.collectives import Ranks

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""What `--signal=USR1@…` and a preemption send."""

REQUEUE_EXIT_CODE = os.EX_TEMPFAIL
"""With this a rank ends that has saved and wants to be started again: `job run` queues the job once more."""


class PreemptionSignal:
    """Hears SIGUSR1 and SIGTERM from `install` to `restore_handlers_or_ignore_after_signal`, in the place of who heard
    them before; nothing where it is not `enabled`. Every rank makes it. Raises ValueError in another thread than the
    main one, where none can be heard.
    """

    def __init__(self, ranks: Ranks, *, enabled: bool) -> None:
        if enabled and threading.current_thread() is not threading.main_thread():
            raise ValueError("save_on_signal: create the Manager in the main thread, which alone receives signals")
        self._pid = os.getpid()
        self._enabled = enabled
        self._received = self._over = False
        self.is_set = False
        self._group: dist.ProcessGroup | None = None
        if enabled and not ranks.alone:
            self._group = ranks.new_group()
        self._pending: tuple[torch.Tensor, Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Install the handlers for SIGUSR1 and SIGTERM, if enabled, and keep the previous ones."""
        if not self._enabled:
            return
        for number in SIGNALS:
            before = signal.signal(number, self._note_signal_or_rerun_previous_handler)
            if before is None:
                before = signal.SIG_DFL
            self._before[number] = before

    def poll_all_ranks(self) -> bool:
        """Return whether a signal has come to any rank, the same on all ranks; it is in `is_set` too.
        Every rank calls it once a step.

        With several ranks it starts a reduction that the next call waits for, so a signal is seen one
        call later.
        """
        if self._group is None:
            self.is_set = self._received
            return self.is_set
        if self._pending is not None:
            number, under_way = self._pending
            under_way.wait()
            self.is_set = self.is_set or bool(number.item())
        number = torch.tensor([int(self._received)], dtype=torch.int32, device="cpu")
        self._pending = number, dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return self.is_set

    def restore_handlers_or_ignore_after_signal(self) -> None:
        """Put back the previous handlers; ignore both signals where one was received.

        After a signal this process is about to end with 75, and Slurm, `job run` and `srun` may each
        send it once more.
        """
        self._over = True
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note_signal_or_rerun_previous_handler:
                # Ignored, not heard: Python takes its handlers away before it has ended, and then a signal kills.
                if self.is_set:
                    before = signal.SIG_IGN
                signal.signal(number, before)

    def _note_signal_or_rerun_previous_handler(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid and (self.is_set or not self._over):
            self._received = True
            return
        # A forked child (of a loader, for example) is asked by nobody, and a framework that puts back the handlers it
        # found may put back this one: both do what they would without us.
        signal.signal(number, self._before[signal.Signals(number)])
        os.kill(os.getpid(), number)
