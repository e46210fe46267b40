"""Waits while storage, which holds the checkpoints, or slurmctld, which knows the allocation, does not answer."""

from __future__ import annotations

import time
from functools import partial
from typing import Callable, Mapping, TypeVar

from hyperpod_kit.errors import CheckpointError, GaveUp, NoValidCheckpoint, RunError
from hyperpod_kit.job.base.allocation import Allocation
from hyperpod_kit.job.base.durations import describe_duration
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.resume import checkpoint_choice, unfinished_flushes
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.scheduler import Scheduler
from hyperpod_kit.slurm.environment import JobEnvironment
from hyperpod_kit.system.bounded_thread import start_in_thread
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.text import counted

T = TypeVar("T")

NOTHING: Mapping[str, str] = {}

PAUSES = BackOff(1.0, 20.0)
"""Seconds between two tries."""

REGISTERED_WITHIN = 60.0
"""Seconds for the nodes to register with a slurmctld that was just started (2 to 3 where it is small): an srun that is
started before that prints nothing and tries again after SlurmctldTimeout, at least 60 s."""
REGISTRATION = 0.5
"""Seconds between two queries whether the nodes have registered."""


def unanswered(failures: int, seconds_left: float) -> str:
    """Return the sentence on a slurmctld that has not answered so many questions in a row."""
    times = "once"
    if failures > 1:
        times = f"{failures} times"
    left = describe_duration(max(0.0, seconds_left))
    return f"slurmctld does not answer ({times} so far); waiting for up to {left} more"


class Patience:
    """Repeats a question to storage or slurmctld until there is an answer or the time for it is over.

    `heed` is called after each pause with a phrase that says what is waited for; it raises when a signal has come
    meanwhile.
    """

    def __init__(
        self,
        options: RunOptions,
        scheduler: Scheduler,
        signals: Signals,
        report: JobReport,
        heed: Callable[[str], None],
    ) -> None:
        self._options = options
        self._scheduler = scheduler
        self._signals = signals
        self._report = report
        self._heed = heed

    def choice(
        self,
        chooser: checkpoint_choice.Chooser,
        passed_over: Mapping[str, str],
        unreadable: Mapping[str, str] = NOTHING,
    ) -> checkpoint_choice.Choice:
        """Return the choice, once storage answers; what cannot be trusted or checked is given up at once.

        An older checkpoint is taken in place of one that cannot be read only after waiting has not helped.
        Raises GaveUp, and what `heed` raises.
        """
        root, state = self._options.root, self._options.state
        choose = partial(checkpoint_choice.choose_requiring_root_present, root, state, chooser, passed_over, unreadable)
        end = time.monotonic() + self._options.storage_wait
        failures = 0
        while True:
            try:
                choice = self._answer_from_thread_heeding_signals(choose)
                if not choice.unread or time.monotonic() >= end:
                    return choice
                reason = next(reason for name, reason in choice.rejected if name == choice.unread[0])
                self._report("storage", f"{choice.unread[0]} {reason}; waiting")
            except NoValidCheckpoint as err:
                raise GaveUp(f"NoValidCheckpoint: {err}", hint=err.hint) from err
            except CheckpointError as err:
                raise GaveUp(f"{type(err).__name__}: {err}", hint=err.hint) from err
            except OSError as err:
                if time.monotonic() >= end:
                    raise GaveUp(f"cannot read {self._options.root}: {err}") from err
                self._report("storage", f"cannot read {self._options.root}: {err}; waiting")
            failures += 1
            self._pause(failures, "waiting for storage")

    def choose_after_unfinished_flushes(
        self, choose: Callable[[], checkpoint_choice.Choice]
    ) -> checkpoint_choice.Choice:
        """Return the choice once the nodes of the run before have brought to storage what they hold.

        They are waited for `flush_wait` seconds at most. Raises GaveUp, and what `choose` and `heed` raise.
        """

        def pause(seconds: float) -> None:
            self._signals.pause_until_stop_or_warning(seconds)
            self._heed("waiting for nodes to flush captures from memory to storage")

        try:
            notes = unfinished_flushes.make_note_reader(self._options.root)
            return unfinished_flushes.choose_after_flushes_end(
                choose,
                lambda stale: self._answer_from_thread_heeding_signals(lambda: notes(stale)),
                self._options.flush_wait,
                root=self._options.root,
                pause=pause,
                report_line=lambda message: self._report("flush", message),
            )
        except NoValidCheckpoint as err:
            raise GaveUp(f"NoValidCheckpoint: {err}", hint=err.hint) from err
        except OSError:
            return choose()  # it waits for storage itself

    def _answer_from_thread_heeding_signals(self, question: Callable[[], T]) -> T:
        """Return the answer to a question to storage, or raise its error. Raises what `heed` raises.

        The question runs in a thread, so that a signal is handled at once: a read of a mount that hangs would delay it.
        """
        call = start_in_thread(question, "hpk-storage")
        call.add_done_callback(lambda _: self._signals.wake())
        while not call.done():
            self._signals.wait(PAUSES.longest)
            self._heed("waiting for storage")
        return call.result()

    def wait_for_answered_allocation(self, job: JobEnvironment) -> Allocation:
        """Return the allocation as slurmctld has it, once slurmctld answers and the nodes have registered with it.

        A slurmctld that does not answer is waited for `controller_wait` seconds at most: no step can be started without
        it, and that must not use up the job's budget of failures. With one that was started just now, nodes that have
        not registered yet are waited for, too. Raises what `heed` raises.
        """
        end = time.monotonic() + self._options.controller_wait
        registered_by = 0.0
        failures = 0
        while True:
            nodes = self._scheduler.query_allocation(job)
            now = time.monotonic()
            if nodes.ended or (nodes.state and not nodes.unheard):
                return nodes
            if nodes.state:
                if not registered_by:
                    registered_by = now + REGISTERED_WITHIN
                    self._report(
                        "controller",
                        f"slurmctld has just started, and {counted(len(nodes.unheard), 'node has', 'nodes have')} "
                        f"not registered yet, first {nodes.unheard[0]}; waiting, {REGISTERED_WITHIN:g} s at most",
                        nodes=list(nodes.unheard),
                    )
                if now >= registered_by:
                    return nodes
                self._signals.pause_until_stop_or_warning(REGISTRATION)
                self._heed("waiting for nodes to register with slurmctld")
                continue
            if now >= end:
                waited = describe_duration(self._options.controller_wait)
                self._report("controller", f"slurmctld has not answered for {waited}; the step is started without it")
                return nodes
            failures += 1
            self._report("controller", unanswered(failures, end - now))
            self._pause(failures, "waiting for slurmctld")

    def requeue(self, job: JobEnvironment) -> None:
        """Requeue the job with scontrol as soon as slurmctld answers. Raises RunError when it does not, or refuses."""
        end = time.monotonic() + self._options.controller_wait
        failures = 0
        while True:
            try:
                return self._scheduler.requeue(job)
            except RunError:
                job_state = self._scheduler.query_allocation(job).state
                if job_state or self._signals.stop or time.monotonic() >= end:
                    raise
            failures += 1
            self._report("controller", f"{unanswered(failures, end - time.monotonic())} to requeue")
            self._signals.wait(5.0)

    def _pause(self, failures: int, doing: str) -> None:
        self._signals.pause_until_stop_or_warning(PAUSES.pause_seconds(failures))
        self._heed(doing)
