"""The settings and collaborators that all parts of one run of the batch script share.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.job.records.ledger import Ledger
from hyperpod_kit.job.step.container import Container
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.scheduler import Scheduler
from hyperpod_kit.slurm.environment import JobEnvironment


class RunContext(NamedTuple):
    """The settings and collaborators that all attempts of one run of the batch script share.

    Attributes:
        groups: Components of a heterogeneous job that the step runs over.
        is_hyperpod: Whether srun knows HyperPod's own step retry.
        descriptor_limit: The soft limit of descriptors that the ranks get.
        claim_path: This job's claim on the root; it is there for as long as the root is the one that was claimed.
    """

    options: RunOptions
    env: Mapping[str, str]
    job: JobEnvironment
    groups: Sequence[int]
    policy: RetryPolicy
    container: Optional[Container]
    is_hyperpod: bool
    descriptor_limit: Optional[int]
    scheduler: Scheduler
    report: JobReport
    signals: Signals
    ledger: Ledger
    claim_path: str
