"""Start and end a short step of our own, one task on each of some nodes, outside of any container.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import subprocess
from typing import Dict, List, Mapping, Sequence

from hyperpod_kit.job.step import srun_step, step_name
from hyperpod_kit.slurm.hostlist import compress
from hyperpod_kit.system.process import make_parent_death_hook

_SHAPE = (
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_GPUS_PER_TASK",
    "SLURM_HINT",
    "SLURM_MEM_BIND",
    "SLURM_MPI_TYPE",
    "SLURM_NNODES",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK",
)
"""Variables by which sbatch describes the training's tasks, and which srun would heed for ours."""


def start_kit_program_on_nodes(
    srun: str,
    purpose: str,
    nodes: Sequence[str],
    program_arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    with_stdin_pipe: bool = False,
) -> subprocess.Popen[bytes]:
    """Start our program with these arguments on each of the nodes; the step's standard output is a pipe.

    With `with_stdin_pipe` so is its standard input, which all tasks read, and they go on without one that has ended, or
    whose node is lost. Raises OSError.
    """
    return start_command(
        srun,
        purpose,
        nodes,
        [*srun_step.kit_command_on_any_node(), *program_arguments],
        env,
        with_stdin_pipe=with_stdin_pipe,
    )


def start_command(
    srun: str,
    name: str,
    nodes: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    with_stdin_pipe: bool = False,
) -> subprocess.Popen[bytes]:
    """Start any command on each of the nodes, with pipes as start_kit_program_on_nodes makes them. Raises OSError."""
    count = len(nodes)
    argv: List[str] = [
        *(srun, "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
        *(f"--nodelist={compress(nodes)}", "--cpu-bind=none", "--kill-on-bad-exit=0", "--mpi=none"),
    ]
    stdin = subprocess.DEVNULL
    if with_stdin_pipe:
        argv += ["--no-kill", "--wait=0"]
        stdin = subprocess.PIPE
    argv += [f"--job-name={step_name.full_name(name)}", *command]
    return subprocess.Popen(
        argv,
        env=srun_step.step_environment(_env_without_hpk_pyxis_and_task_shape(env), {}),
        stdin=stdin,
        stdout=subprocess.PIPE,
        preexec_fn=make_parent_death_hook(os.getpid()),
    )


def _env_without_hpk_pyxis_and_task_shape(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment without what srun would heed for the training's tasks: pyxis starts a container for its
    variables."""
    return {
        key: value
        for key, value in env.items()
        if not key.startswith(("HPK_", "PYXIS_CONTAINER_")) and key not in _SHAPE
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """End the step: by TERM, which makes srun end its tasks, and by KILL where that takes more than 10 seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
