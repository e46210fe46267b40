"""Supervise one rank: start its command, wait for it, record how it ended.

The wrapper is Slurm's task. Should its slurmstepd die, which Slurm does not notice, it ends the command: a rank that is
not managed any more would write beside the ranks of the next attempt.
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
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_PROGRESS, HPK_STATE
from hyperpod_kit.errors import HyperpodKitError, NoValidCheckpoint
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.base import descendants, launch_failure
from hyperpod_kit.job.base.exits import Exit, write
from hyperpod_kit.job.base.launch_failure import LaunchFailure
from hyperpod_kit.job.goodput.time_log import RankTime, TimeLog
from hyperpod_kit.job.goodput.time_rows import MemoryCapture
from hyperpod_kit.job.resume import launches
from hyperpod_kit.job.step import container, script_containers
from hyperpod_kit.job.step.lifeline import BYE, LOST, SERVES, STORAGE, Lifeline
from hyperpod_kit.job.step.storage import Probe, RootWatch
from hyperpod_kit.job.wrapper.step_reporter import StepReporter
from hyperpod_kit.slurm import tracking
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.job_id import het_component_count
from hyperpod_kit.slurm.progress import RankProgress
from hyperpod_kit.system.process import make_parent_death_hook

_PARENT_CHECK_INTERVAL = 1.0
"""Seconds between two looks at our parent."""


class Orphaned:
    """Ends the command once `parent` is no longer our parent, and then what it has left, by `end_what_is_left`.

    PDEATHSIG is no substitute: it fires when a *thread* of the parent ends.
    """

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        parent: int,
        end_what_is_left: Optional[Callable[[], object]],
    ) -> None:
        self._child = child
        self._parent = parent
        self._end_what_is_left = end_what_is_left
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(_PARENT_CHECK_INTERVAL):
            if self.is_orphaned:
                self._child.kill()
                if self._end_what_is_left is not None:
                    self._end_what_is_left()
                return

    @property
    def is_orphaned(self) -> bool:
        """Whether our parent has gone, looked up anew each time: a command that prints ends by itself, of a broken
        pipe, before our thread has noticed."""
        return os.getppid() != self._parent

    def stop(self) -> None:
        """Make the thread end before its next look."""
        self._over.set()


class SignalsOfTask:
    """Receives the signals of Slurm to the task, which is this wrapper. The wrapper outlives them, and the command has
    to receive each once.

    `only_us`: Slurm signals no process but the task, so signals are passed on; otherwise it signals the command, too.
    """

    def __init__(self, only_us: bool) -> None:
        self._only_us = only_us
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._early: List[int] = []
        # Handlers and not SIG_IGN: ignored signals would be inherited by the command.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, self._forward_or_queue_signal)

    def _forward_or_queue_signal(self, number: int, frame: Any) -> None:
        if not self._only_us:
            return
        if self._child is None:
            self._early.append(number)
        elif self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def set_child_and_forward_early_signals(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to the command, which has started, beginning with those that came before."""
        self._child = child
        while self._early:
            self._forward_or_queue_signal(self._early.pop(0), None)


def run_rank(
    argv: Sequence[str], env: Mapping[str, str], in_container: bool = False, ends_all_processes: bool = False
) -> int:
    """Run a rank's command, write how it ended, and return the exit code for srun (128 + signal after a signal).

    75 is returned as 0: srun would kill the ranks that are still saving. The record keeps the 75.
    `in_container`: we are in a container, whose mounts are its own. `ends_all_processes`: nothing but this wrapper ends
    what the command leaves behind.
    """
    end_what_is_left: Optional[Callable[[], object]] = None
    if ends_all_processes:
        end_what_is_left = descendants.kill_all_but_agents_below
    elif script_containers.container_started_by_command(argv) is not None:
        end_what_is_left = descendants.kill_podman_containers_below
    return RankWrapper(argv, env, in_container, end_what_is_left).run()


@dataclass(frozen=True)
class RankIdentity:
    """Which rank this is, and where what belongs to its attempt lies.

    Attributes:
        number: Its rank among all.
        node: Its node, by Slurm's name.
        is_first_on_node: Whether its wrapper reports for the node.
        state: The directory of `job run`'s records; None outside of `job run`.
        attempt: The name of the attempt, likewise.
        root: The checkpoint root; "" where there is none.
    """

    number: int
    node: str
    is_first_on_node: bool
    state: Optional[str]
    attempt: Optional[str]
    root: str

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RankIdentity:
        """Return the identity that the environment of the task has."""
        return cls(
            _number(env, "SLURM_PROCID"),
            env.get("SLURMD_NODENAME") or os.uname().nodename,
            env.get("SLURM_LOCALID", "0") == "0",
            env.get(HPK_STATE),
            env.get(HPK_ATTEMPT),
            env.get(HPK_CHECKPOINT_ROOT, ""),
        )


class RankWrapper:
    """Runs one rank: checks what it needs, starts its command, watches it, and records how it ended."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        inside: bool,
        end_what_is_left: Optional[Callable[[], object]],
    ) -> None:
        self._parent = os.getppid()  # before anything that may take time: a parent that dies in it would be missed
        self._started = time.time()
        self._argv = list(argv)
        self._env = env
        self._inside = inside
        self._rank = RankIdentity.read(env)
        self._probe: Optional[Probe] = None
        if self._rank.state:
            self._probe = Probe(self._rank.state, self._rank.root)
        self._progress = RankProgress()
        self._signals = SignalsOfTask(only_us=tracking.only_tasks_are_signalled(tracking.read_own_cgroup_text()))
        self._end_what_is_left = end_what_is_left

    def run(self) -> int:
        """Run the rank, record its end, and return the exit code for srun."""
        unmounted = self._find_unmounted_path()
        if unmounted:
            _print_error(
                f"no mount of this container contains {unmounted}: no rank can start; add it to --container-mounts"
            )
            return ExitCode.NOT_MOUNTED
        line = Lifeline(self._env, self._rank.node)
        if self._probe is not None and self._rank.is_first_on_node and not self._probe.answers():
            _print_error(f"{self._rank.state} does not answer on {self._rank.node}")
            line.end(STORAGE)
            return ExitCode.NO_STORAGE
        is_orphaned = False
        try:
            env = launches.environment_of_current_launch(self._env)
        except OSError as err:
            _print_error(f"{self._rank.state}: {err}")
            line.end(STORAGE)
            return ExitCode.NO_STORAGE
        except HyperpodKitError as err:
            _print_error(f"{type(err).__name__}: {err}")
            code = 1
            if isinstance(err, NoValidCheckpoint):
                code = int(ExitCode.GAVE_UP)
        else:
            code, is_orphaned = self._run_command(env, line)
        last_word = LOST if is_orphaned else BYE
        line.end(self._record_end(code, last_word))
        return _code_for_srun(code)

    def _find_unmounted_path(self) -> str:
        """Return the first directory that the rank needs and its container does not have; "" for none."""
        if not self._inside or not self._rank.state:
            return ""
        for path in (self._rank.state, self._rank.root):
            if is_path(path) and not container.is_at_or_below_mount_except_root(path):
                return path
        return ""

    def _run_command(self, env: Mapping[str, str], line: Lifeline) -> Tuple[int, bool]:
        """Start the command and wait for its end; return its code and whether our slurmstepd has gone meanwhile."""
        if self._end_what_is_left is not None:
            descendants.become_reaper_of_orphans_below()
        try:
            # It must not outlive its wrapper, or it would write beside the next attempt's ranks.
            child = subprocess.Popen(
                self._argv,
                env={**env, HPK_PROGRESS: self._progress.path},
                preexec_fn=make_parent_death_hook(os.getpid()),
            )
        except OSError as err:
            return self._record_launch_failure(err), False
        self._signals.set_child_and_forward_early_signals(child)
        with contextlib.ExitStack() as stack:
            orphaned = Orphaned(child, self._parent, self._end_what_is_left)
            self._watch_root(line, stack)
            if self._end_what_is_left is not None:
                stack.callback(self._end_what_is_left)
            self._report_steps(line, stack)
            stack.callback(orphaned.stop)
            code = child.wait()
        return code, orphaned.is_orphaned

    def _record_launch_failure(self, error: OSError) -> int:
        """Print and record that the command cannot be started; return the exit code that stands for it."""
        program = self._argv[0]
        _print_error(f"cannot start {program}: {error.strerror}")
        if self._rank.is_first_on_node:
            failure = LaunchFailure(self._rank.node, program, error.strerror or str(error), _launch(self._env))
            _write_launch_failure_record(self._env, failure)
        return launch_failure.code_of(error)

    def _report_steps(self, line: Lifeline, stack: contextlib.ExitStack) -> None:
        """Report steps and times of the rank while it runs."""
        reporter = StepReporter(self._progress, line, self._env, rank=self._rank.number, node=self._rank.node)
        time_log = TimeLog(
            self._rank.state,
            self._rank.attempt,
            self._progress,
            RankTime(_launch(self._env), self._rank.node, self._started),
            rank=self._rank.number,
            captured=functools.partial(_newest_capture, self._env),
        )
        stack.callback(time_log.stop)
        stack.callback(reporter.stop)

    def _watch_root(self, line: Lifeline, stack: contextlib.ExitStack) -> None:
        """Tell `job run` when the checkpoint root stops answering on this node, from the node's first rank."""
        if not self._rank.state or not self._rank.is_first_on_node:
            return

        def report_change(is_unreachable: bool) -> None:
            if is_unreachable:
                line.say(STORAGE)
            else:
                line.say(SERVES)

        watch = RootWatch(
            self._rank.state,
            report_change,
            root=self._rank.root,
            inside=self._inside,
            failed=self._progress.failed_save_count,
        )
        stack.callback(watch.stop)

    def _record_end(self, code: int, last_word: str) -> str:
        """Write the record of the rank's end; return the last word for `job run`."""
        if not self._rank.state or not self._rank.attempt:
            return last_word
        has_failed = code not in (0, ExitCode.AGAIN)
        if has_failed and self._probe is not None and not self._probe.answers():
            if last_word == BYE:
                return STORAGE
            return last_word
        exit_code: Optional[int] = code
        ending_signal: Optional[int] = None
        if code < 0:
            exit_code, ending_signal = None, -code
        record = Exit(
            rank=self._rank.number,
            node=self._rank.node,
            boot_id=_boot_id(),
            code=exit_code,
            signal=ending_signal,
            started=round(self._started, 3),
            ended=round(time.time(), 3),
            step=self._progress.completed_step(),
            begins=self._progress.first_step(),
            launch=_launch(self._env),
        )
        try:
            write(self._rank.state, self._rank.attempt, record)
        except OSError as err:
            _say(f"hyperpod-kit: no exit record of rank {record.rank}: {err}")
        return last_word


def _code_for_srun(code: int) -> int:
    if code == ExitCode.AGAIN:
        return 0
    if code < 0:
        return 128 - code
    return code


def _print_error(message: str) -> None:
    print(f"hyperpod-kit: {message}", file=sys.stderr)


def _newest_capture(env: Mapping[str, str], now: float) -> Optional[MemoryCapture]:
    """Return the newest capture in the memory of this node. `now`: Unix seconds."""
    from hyperpod_kit.job.goodput import memory_captures  # rank 0 alone needs it

    return memory_captures.newest(env, now)


def _launch(env: Mapping[str, str]) -> str:
    """Return the id of this launch; "" in a heterogeneous step, whose components have a port each: what is one launch
    would look like several."""
    if het_component_count(env):
        return ""
    return step_launch_id_with_srun_port(env)


def _write_launch_failure_record(env: Mapping[str, str], failure: LaunchFailure) -> None:
    """Record why the command cannot be started, so that `job run` names the cause; it has only this rank's exit code
    otherwise."""
    state, attempt = env.get(HPK_STATE), env.get(HPK_ATTEMPT)
    if state and attempt:
        with contextlib.suppress(OSError):
            launch_failure.write(state, attempt, _number(env, "SLURM_PROCID"), failure)


def _say(text: str) -> None:
    """Print a line, which fails without consequence where slurmstepd is gone and nothing reads it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _boot_id() -> str:
    """Return the id of the machine's boot, "" where there is none: it tells a replaced machine from its predecessor of
    the same name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not text.isdigit():
        return 0
    return int(text)
