"""Start one srun, and end it so that nothing of it goes on writing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.descriptors import command_with_soft_limit
from hyperpod_kit.errors import JobError
from hyperpod_kit.job.step import step_name
from hyperpod_kit.job.step.container import INSIDE, Container
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import hyperpod
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.system.mountinfo import is_same_or_below

BUNDLES = "/opt/hyperpod-kit"
"""Where each node has its bundles, each by the digest of its bytes; nodes of one job may have different ones."""

INSTALLED = f"{BUNDLES}/current/lib"
"""The vendored program under the name that every node has, whatever the id of its bundle."""

SYSTEM_PYTHON = "/usr/bin/python3"
"""What a bundle runs on, on every node: its creation ends without it."""


class StepPlan(NamedTuple):
    """A step to start. `nodes`: exactly these, all of the allocation when empty; `hyperpod`: srun knows --auto-resume.

    `groups`: the components of a heterogeneous job that the step is to run over; srun would take the first one only.
    """

    command: Sequence[str]
    attempt: str
    srun_args: Sequence[str] = ()
    nodes: Sequence[str] = ()
    retry: bool = False
    hyperpod: bool = False
    srun: str = "srun"
    container: Optional[Container] = None
    groups: Sequence[int] = ()

    def argv(self) -> List[str]:
        """Return the srun command line."""
        args = [self.srun, "--kill-on-bad-exit=1"]
        if self.retry:
            # Slurm may take minutes to let go of the step before on a node that died.
            args.append("--overlap")
        if self.hyperpod:
            args.append("--auto-resume=1")
        if self.nodes:
            args += [f"--nodes={len(self.nodes)}", f"--nodelist={compress(self.nodes)}"]
        if self.groups:
            args.append(f"--het-group={','.join(map(str, self.groups))}")
        # After the user's: by its name a step is ended that has outlived its srun.
        name = f"--job-name={step_name.full_name(self.attempt)}"
        return [*args, *self.srun_args, name, *wrapper(self.container), *self.command]


def wrapper(container: Optional[Container] = None) -> List[str]:
    """Return the command that runs a rank and writes how it ended; we may be a bundle, a checkout or a venv.

    The batch host's own Python need not be in a container; our program is, by the node's enroot fstab.
    """
    if container:
        return container.command_running_python_inside([path_of_kit_main_on_nodes(), "exec", INSIDE, "--"])
    return [*kit_command_on_any_node(), "exec", "--"]


def kit_command_on_any_node() -> List[str]:
    """Return the command that runs our job commands on any node of the job, without their arguments."""
    python = SYSTEM_PYTHON
    if not _is_bundled():
        python = sys.executable or SYSTEM_PYTHON
    return [python, "-I", "-S", path_of_kit_main_on_nodes()]


def kit_command_on_this_node() -> List[str]:
    """Return the command that runs our job commands here, from the very files that this process runs from."""
    return [sys.executable or SYSTEM_PYTHON, "-I", "-S", str(_own_program())]


def path_of_kit_main_on_nodes() -> str:
    """Return the path of our `__main__.py`, by the name that every node has where there is one.

    Never by the id of our bundle: a node that was replaced since, or whose bundle was changed in place, lacks it.
    """
    main_path = _own_program()
    if not _is_bundled():
        return str(main_path)
    return str(Path(INSTALLED, *main_path.parts[-3:]))


def _own_program() -> Path:
    return Path(__file__).absolute().parents[1] / "__main__.py"


def _is_bundled() -> bool:
    """Return whether we run from any of this node's bundles, be it `current` or not."""
    return is_same_or_below(os.path.realpath(_own_program()), os.path.realpath(BUNDLES))


def step_environment(env: Mapping[str, str], extra: Mapping[str, str]) -> Dict[str, str]:
    """Return srun's environment: ours, the attempt's variables, and what srun no longer takes over by itself."""
    environment = {**env, **extra}
    # `sbatch --export=NONE` leaves this behind, and srun would then keep the attempt's variables from the ranks.
    if environment.get("SLURM_EXPORT_ENV", "").upper() in ("NONE", "NIL"):
        del environment["SLURM_EXPORT_ENV"]
    if "SLURM_CPUS_PER_TASK" in environment:
        environment.setdefault("SRUN_CPUS_PER_TASK", environment["SLURM_CPUS_PER_TASK"])
    return environment


def task_count_variables(env: Mapping[str, str], nodes: Sequence[str]) -> Dict[str, str]:
    """Return the variables for how many ranks a step on these nodes has: srun would take the whole allocation's, and
    refuse. None are returned without nodes, or where the tasks of a node are not known."""
    tasks_per_node = env.get("SLURM_NTASKS_PER_NODE", "")
    if not nodes or not tasks_per_node.isdigit():
        return {}
    task_count = str(int(tasks_per_node) * len(nodes))
    return {"SLURM_NTASKS": task_count, "SLURM_NPROCS": task_count}


def is_hyperpod_step_retry_available(runner: Runner, hyperpod_directory: str = hyperpod.NODE_DIRECTORY) -> bool:
    """Return whether HyperPod's own step retry is available on this node."""
    return os.path.isdir(hyperpod_directory) and hyperpod.has_hyperpod_step_retry(runner)


class RunningStep:
    """A step of which this process has started the launcher: srun, or the wrapper of a command on this machine."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> Optional[int]:
        """Return the exit code (negative: the signal that killed the launcher), None while it runs."""
        return self._process.poll()

    def end(
        self,
        kill_ranks: Callable[[], object],
        wait: Callable[[float], None],
        *,
        grace: float = 10.0,
        patience: float = 5.0,
    ) -> int:
        """End the step for good, and return the launcher's code: TERM to it, then KILL to its ranks, then KILL to it.

        `wait(seconds)` returns earlier when a child ends. Takes at most `grace` s, twice `patience` s, and what
        `kill_ranks` takes.
        """
        self.send_signal(signal.SIGTERM)
        self._await(grace, wait)
        if self.poll() is None:
            kill_ranks()
            self._await(patience, wait)
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self._await(patience, wait)
        code = self.poll()
        if code is None:
            return -int(signal.SIGKILL)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the launcher, which hands it on to the ranks, where it runs."""
        if self.poll() is None:
            self._process.send_signal(number)

    def _await(self, seconds: float, wait: Callable[[float], None]) -> None:
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            wait(end - time.monotonic())


class SrunStep(RunningStep):
    """A running srun. It stays in the batch script's process group, so that Slurm's own clean-up finds it.

    `descriptors`: the soft limit that srun hands on to the ranks, None for our own.
    """

    def __init__(self, plan: StepPlan, env: Mapping[str, str], descriptors: Optional[int] = None) -> None:
        argv = plan.argv()
        command = argv
        if descriptors is not None:
            command = command_with_soft_limit(descriptors, argv)
        try:
            if shutil.which(argv[0], path=env.get("PATH")) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            super().__init__(subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL))
        except OSError as err:
            raise JobError(
                f"cannot start {argv[0]}: {err.strerror}", hint="check that Slurm's programs are in PATH"
            ) from err
