"""What Slurm tells a job through its environment, and whether the job asked for auto-resume.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from typing import Mapping, Optional, Sequence, Tuple

from hyperpod_kit.environment import HPK_AUTO_RESUME
from hyperpod_kit.errors import NotInAJob
from hyperpod_kit.slurm import versions
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId, het_component_count

COMMENT_MARK = "hpk:auto-resume="
"""How `job submit` writes the choice into the job's comment, where a cluster without the plugin keeps it."""

STEP_FAMILY = "hpk."
"""How the names of all steps of `job run` begin. Those of builds before 0.1.0 begin with `hpk-`, and such a `job run`
ends every step whose name does."""

AWAY_MARK = "hpk:elsewhere"
"""In the job's comment: this run ended itself because its host alone lost the checkpoint root; to be queued again."""

REQUEUE_AFTER_CANCEL_MARK = "hpk:requeue-after-cancel="
"""In the job's comment, before the number of a user: a scancel by that user, while the ranks hang, is not the end."""

OPTION_VARIABLES = (HPK_AUTO_RESUME, f"SLURM_SPANK_{HPK_AUTO_RESUME}", f"SPANK_{HPK_AUTO_RESUME}")
"""Where the choice is found, best first. `--export=NONE` loses the first and keeps the second; hooks see the third."""


def step_launch_id_with_srun_port(env: Mapping[str, str]) -> str:
    """Return an id that tells one launch of a step's ranks from another: HyperPod's step retry may keep the
    step id, but not srun's port.

    A step over several components of a heterogeneous job has a port for each: there its nodes stand in for
    it. What is no step of srun's, the batch script for one, is `0.0`.
    """
    step = versions.srun_step_number_or_empty(env.get("SLURM_STEP_ID", ""))
    port = env.get("SLURM_STEP_LAUNCHER_PORT") or env.get("SLURM_SRUN_COMM_PORT") or "0"
    if het_component_count(env):
        port = f"het{zlib.crc32(env.get('SLURM_STEP_NODELIST', '').encode()):08x}"
    return f"{step or '0'}.{port}"


@dataclass(frozen=True)
class JobEnvironment:
    """This run of this job. `restart`: how often Slurm has requeued it; `tasks`: ranks of a step, 0 when not said.

    `groups`: nodes of each component of a heterogeneous job, whose `nodes` are those of all of them.
    """

    id: JobId
    restart: int
    nodes: Tuple[str, ...]
    tasks: int
    groups: Tuple[Tuple[str, ...], ...] = ()

    @classmethod
    def read(cls, env: Mapping[str, str]) -> JobEnvironment:
        """Read the job from the environment of its batch script. Raises NotInAJob outside of a job."""
        job_id = JobId.read(env)
        if not job_id.raw:
            raise NotInAJob(
                "this is not a Slurm job: SLURM_JOB_ID is not set",
                hint="run `hyperpod-kit job run` inside the script that you submit with sbatch; without Slurm: "
                "hyperpod-kit job run --local",
            )
        groups = tuple(
            tuple(expand(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{offset}", "")))
            for offset in range(len(job_id.components))
        )
        hosts = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
        return cls(
            id=job_id,
            restart=_number_or_zero(env.get("SLURM_RESTART_COUNT")),
            nodes=_distinct_nodes(groups) or tuple(expand(hosts)),
            tasks=_number_or_zero(env.get("SLURM_NTASKS")),
            groups=groups,
        )

    def restricted_to_components(self, offsets: Sequence[int]) -> JobEnvironment:
        """Return a copy that has only the nodes of the components with these offsets."""
        return replace(self, nodes=_distinct_nodes([self.groups[offset] for offset in offsets]))


def _distinct_nodes(groups: Sequence[Sequence[str]]) -> Tuple[str, ...]:
    """Return the node names of all groups, each once: two components may share a node."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def read_auto_resume_option(env: Mapping[str, str], comment: str = "") -> Optional[int]:
    """Return the value given to --auto-resume, from the environment or else from the job's comment: 0 off, 1
    on, more: that many restarts; None where neither has it."""
    for name in OPTION_VARIABLES:
        text = env.get(name, "")
        if text.isdigit():
            return int(text)
    match = re.search(re.escape(COMMENT_MARK) + r"(\d+)", comment)
    if match:
        return int(match.group(1))
    return None


def _number_or_zero(text: Optional[str]) -> int:
    if text and text.isdigit():
        return int(text)
    return 0
