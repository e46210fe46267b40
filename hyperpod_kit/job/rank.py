"""Supervise one rank: start its command, wait for it, record how it ended.

The wrapper is Slurm's task. Should its slurmstepd die, which Slurm does not notice, it ends the command: a rank that
nobody manages any more would write beside the ranks of the next attempt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, List, Mapping, Optional, Sequence

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_PROGRESS, HPK_STATE
from hyperpod_kit.errors import HyperpodKitError, NoValidCheckpoint
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job import adopted, container, launch_failure, launches, script_containers
from hyperpod_kit.job.exits import Exit, write
from hyperpod_kit.job.goodput.time_log import RankTime, TimeLog
from hyperpod_kit.job.goodput.time_rows import MemoryCapture
from hyperpod_kit.job.launch_failure import LaunchFailure
from hyperpod_kit.job.lifeline import BYE, LOST, SERVES, STORAGE, Lifeline
from hyperpod_kit.job.step_reporter import StepReporter
from hyperpod_kit.job.storage import Probe, RootWatch
from hyperpod_kit.slurm import tracking
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.job_id import het_size
from hyperpod_kit.slurm.progress import RankProgress
from hyperpod_kit.system.process import make_parent_death_hook

_LOOK = 1.0
"""Seconds between two looks at our parent."""


class Orphaned:
    """Ends the command when `parent` is ours no more; `whole`: and all that it has left. Not PDEATHSIG: that one fires
    when a *thread* of it ends."""

    def __init__(self, child: subprocess.Popen[bytes], parent: int, whole: bool = False) -> None:
        self._child = child
        self._parent = parent
        self._whole = whole
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            if self.seen:
                self._child.kill()
                if self._whole:
                    adopted.end_all()
                return

    @property
    def seen(self) -> bool:
        """Asked anew each time: a command that prints ends by itself, of a broken pipe, before we have looked."""
        return os.getppid() != self._parent

    def stop(self) -> None:
        self._over.set()


class SignalsOfTask:
    """What Slurm tells the task, which is this wrapper. The wrapper outlives it, and the command has to hear it once.

    only_us: Slurm signals no process but the task, so it is passed on; otherwise it signals the command, too.
    """

    def __init__(self, only_us: bool) -> None:
        self._only_us = only_us
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._early: List[int] = []
        # Handlers and not SIG_IGN: ignored signals would be inherited by the command.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: Any) -> None:
        if not self._only_us:
            return
        if self._child is None:
            self._early.append(number)
        elif self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def meant_for(self, child: subprocess.Popen[bytes]) -> None:
        """The command has started: it hears what came before."""
        self._child = child
        while self._early:
            self._hear(self._early.pop(0), None)


def run_rank(argv: Sequence[str], env: Mapping[str, str], inside: bool = False) -> int:
    """Run a rank's command, write how it ended, return the exit code for srun (128 + signal after a signal).

    75 is returned as 0: srun would kill the ranks that are still saving. The record keeps the 75. `inside`: we are in
    a container, whose mounts are its own.
    """
    parent = os.getppid()  # before anything that may take time: a parent that dies in it would never be missed
    began = time.time()
    node = env.get("SLURMD_NODENAME") or os.uname().nodename
    state, attempt = env.get(HPK_STATE), env.get(HPK_ATTEMPT)
    checkpoints = env.get(HPK_CHECKPOINT_ROOT, "")
    probe = Probe(state, checkpoints) if state else None
    progress = RankProgress()
    signals = SignalsOfTask(only_us=tracking.only_tasks_are_signalled(tracking.process_cgroups()))
    for path in filter(is_path, (state, checkpoints)) if inside and state else ():
        if not container.mounted(path):
            print(
                f"hyperpod-kit: nothing is mounted in this container that holds {path}: no rank can be started; "
                f"add it to --container-mounts",
                file=sys.stderr,
            )
            return ExitCode.NOT_MOUNTED
    line = Lifeline(env, node)
    first = env.get("SLURM_LOCALID", "0") == "0"
    if probe and first and not probe.answers():
        print(f"hyperpod-kit: {state} does not answer on {node}", file=sys.stderr)
        line.end(STORAGE)
        return ExitCode.NO_STORAGE
    code, told = 0, dict(env)
    try:
        told = launches.told(env)
    except OSError as err:
        print(f"hyperpod-kit: {state}: {err}", file=sys.stderr)
        line.end(STORAGE)
        return ExitCode.NO_STORAGE
    except HyperpodKitError as err:
        print(f"hyperpod-kit: {type(err).__name__}: {err}", file=sys.stderr)
        code = ExitCode.GAVE_UP if isinstance(err, NoValidCheckpoint) else 1
    orphaned = None
    container_below = script_containers.of(argv) is not None
    if not code:
        if container_below:
            adopted.adopt()
        try:
            # It must not outlive its wrapper, or it would write beside the next attempt's ranks.
            child = subprocess.Popen(
                list(argv), env={**told, HPK_PROGRESS: progress.path}, preexec_fn=make_parent_death_hook(os.getpid())
            )
        except OSError as err:
            print(f"hyperpod-kit: cannot start {argv[0]}: {err.strerror}", file=sys.stderr)
            code = launch_failure.code_of(err)
            if first:
                _tell_of_failure(env, LaunchFailure(node, argv[0], err.strerror or str(err), _launch(env)))
        else:
            signals.meant_for(child)
            orphaned = Orphaned(child, parent, container_below)
            rank = _number(env, "SLURM_PROCID")
            reporter = StepReporter(progress, line, env, rank=rank, node=node)
            measured = RankTime(_launch(env), node, began)
            captured = functools.partial(_newest_capture, env)
            time_log = TimeLog(state, attempt, progress, measured, rank=rank, captured=captured)
            root = (
                RootWatch(
                    state,
                    lambda away: line.say(STORAGE if away else SERVES),
                    root=checkpoints,
                    inside=inside,
                    failed=progress.failed_save_count,
                )
                if state and first
                else None
            )
            code = child.wait()
            orphaned.stop()
            reporter.stop()
            time_log.stop()
            if container_below:
                adopted.end_all()
            if root:
                root.stop()
    word = LOST if orphaned and orphaned.seen else BYE
    record = Exit(
        rank=_number(env, "SLURM_PROCID"),
        node=node,
        boot_id=_boot_id(),
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        started=round(began, 3),
        ended=round(time.time(), 3),
        step=progress.completed_step(),
        begins=progress.first_step(),
        launch=_launch(env),
    )
    if state and attempt:
        if code not in (0, ExitCode.AGAIN) and probe and not probe.answers():
            word = STORAGE if word == BYE else word
        else:
            try:
                write(state, attempt, record)
            except OSError as err:
                _say(f"hyperpod-kit: no exit record of rank {record.rank}: {err}")
    line.end(word)
    if code == ExitCode.AGAIN:
        return 0
    return code if code >= 0 else 128 - code


def _newest_capture(env: Mapping[str, str], now: float) -> Optional[MemoryCapture]:
    """In the memory of this node. `now`: Unix seconds."""
    from hyperpod_kit.job.goodput import memory_captures  # rank 0 alone needs it

    return memory_captures.newest(env, now)


def _launch(env: Mapping[str, str]) -> str:
    """The components of a heterogeneous step have a port each: what is one launch would look like several."""
    return "" if het_size(env) else step_launch_id_with_srun_port(env)


def _tell_of_failure(env: Mapping[str, str], failure: LaunchFailure) -> None:
    """`job run` names the cause; without it, it has the exit code of this rank."""
    state, attempt = env.get(HPK_STATE), env.get(HPK_ATTEMPT)
    if state and attempt:
        with contextlib.suppress(OSError):
            launch_failure.write(state, attempt, _number(env, "SLURM_PROCID"), failure)


def _say(text: str) -> None:
    """Where slurmstepd is gone, nobody reads."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _boot_id() -> str:
    """Tells a replaced machine from its predecessor of the same name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else 0
