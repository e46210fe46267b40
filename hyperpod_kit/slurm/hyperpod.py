"""What HyperPod's Slurm has that a stock one has not: its cluster agent, and the plugin that retries a step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control

MARK = "/opt/sagemaker_cluster"
"""A directory that HyperPod's nodes have; AWS's own examples ask for it before `srun --auto-resume=1`."""

OPTION = "--auto-resume"

OURS = "hyperpod-kit"
"""In the help of our own plugin's option of the same name."""


def retries_steps(runner: Runner) -> bool:
    """Whether srun has HyperPod's option, and not ours: then it replaces a node and starts the step again."""
    found = control.option_help(runner, "srun", OPTION)
    return found is not None and found != "" and OURS not in found
