"""The watches and the facts with which a running step is supervised.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from hyperpod_kit.job.step.hang import KnownSilences
from hyperpod_kit.job.step.lifeline import Lifelines
from hyperpod_kit.job.step.step_retry import StepRetry
from hyperpod_kit.job.step.storage import CheckpointRoot
from hyperpod_kit.job.step.watch import NodeWatch
from hyperpod_kit.slurm import control


@dataclass(frozen=True)
class SupervisionRules:
    """The watches over a step, and what was known of its nodes and its job before it started.

    Attributes:
        nodes: The watch over slurmds; None when slurmctld did not say where they are.
        storage: The checkpoint root.
        lines: The connections of the nodes.
        retry: HyperPod's step retry, where it replaces nodes under a running srun (20 to 30 minutes): nothing but a
            step is ended then.
        used: The nodes of the step.
        starts: When the machines of its nodes were started, as it was known before the step.
        known_silences: What is known of this job's silences.
    """

    nodes: Optional[NodeWatch]
    storage: CheckpointRoot
    lines: Lifelines
    retry: Optional[StepRetry] = None
    used: Tuple[str, ...] = ()
    starts: Mapping[str, control.NodeStart] = field(default_factory=dict)
    known_silences: KnownSilences = field(default_factory=KnownSilences)
