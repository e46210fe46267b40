"""What HyperPod's Slurm has that a stock one has not: its cluster agent, and the plugin that retries a step.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control

NODE_DIRECTORY = "/opt/sagemaker_cluster"
"""A directory that HyperPod's nodes have; AWS's own examples ask for it before `srun --auto-resume=1`."""

OPTION = "--auto-resume"

KIT_OPTION_TEXT = "hyperpod-kit"
"""In the help of our own plugin's option of the same name."""


def has_hyperpod_step_retry(runner: Runner) -> bool:
    """Return whether srun has HyperPod's own --auto-resume, and not the kit's: then it replaces a node and
    starts the step again."""
    help_text = control.option_help_none_if_not_runnable(runner, "srun", OPTION)
    return help_text is not None and help_text != "" and KIT_OPTION_TEXT not in help_text
