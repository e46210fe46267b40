"""A step of Slurm's for which nobody has chosen a checkpoint, although its job has named a checkpoint root.

`job run` chooses for the steps that it starts, and our plugin of Slurm for a bare srun. Where the plugin is missing, or
was compiled for another Slurm, a step begins as if there were nothing to resume from: a trainer that finds no decision
must not take that for one.
"""

from __future__ import annotations

from typing import Mapping

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_AUTO_RESUME, HPK_CHECKPOINT_ROOT, HPK_RESUME_FROM
from hyperpod_kit.slurm import versions
from hyperpod_kit.slurm.environment import OPTION_VARIABLES

HINT = (
    "hyperpod-kit job doctor  # is the plugin built for this Slurm? A node whose bundle is older than this "
    f"package decides for `{HPK_AUTO_RESUME}=1 srun …`, and for every srun after `hyperpod-kit node apply`. Or "
    f"start the trainer with hyperpod-kit job run; {HPK_AUTO_RESUME}=0 srun … starts it without a decision"
)


def lacks_checkpoint_decision(env: Mapping[str, str]) -> bool:
    """Whether a rank's environment lacks the decision that its job asks for. Pure."""
    if not env.get(HPK_CHECKPOINT_ROOT) or env.get(HPK_ATTEMPT) or env.get(HPK_RESUME_FROM):
        return False
    if not env.get("SLURM_JOB_ID") or not versions.srun_step_number_or_empty(env.get("SLURM_STEP_ID", "")):
        return False
    choice = next((env[name] for name in OPTION_VARIABLES if env.get(name)), "")
    return choice != "0"


def explain_missing_checkpoint_decision(env: Mapping[str, str]) -> str:
    """Return the message with which a trainer in such a step refuses to begin."""
    return (
        f"step {env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')} was started without a checkpoint being chosen from "
        f"{HPK_CHECKPOINT_ROOT}={env.get(HPK_CHECKPOINT_ROOT)}: {HPK_RESUME_FROM} is not set"
    )
