"""The clusters that can be rehearsed: which Slurm, and what of HyperPod's own it has besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Tuple

from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.model.states import LifecycleMode

BY_CGROUP = "cgroup"


@dataclass(frozen=True)
class Profile:
    """A kind of cluster. Its nodes take slurm.conf from the controller (configless), whatever it is.

    `release`: code name of the nodes' Debian, of this machine's own distribution when empty; `slurm`: the version that
    it comes with, for people. `tracking`: of ProctrackType; with BY_CGROUP the end of a step takes all that the step
    has started. `step_retry`: HyperPod's plugin behind `srun --auto-resume` and its cluster agent. `mode`: who starts
    Slurm, in the tests that make a cluster of this profile. `parameters`: SlurmctldParameters. `second_slurm`: version
    of another Slurm beside the first, from `second_release`, behind the link /opt/slurm. `agents`: HyperPod's agents
    of 2026: of the configuration on the controller, of hung jobs on every compute node.
    """

    name: str
    slurm: str
    release: str = ""
    tracking: str = "linuxproc"
    step_retry: bool = False
    mode: LifecycleMode = LifecycleMode.ON_CREATE
    parameters: Tuple[str, ...] = ("enable_configless",)
    second_slurm: str = ""
    second_release: str = ""
    agents: bool = False


STOCK = Profile("stock", "22.05")
TODAY = Profile("today", "24.11", release="trixie")
NEWEST = Profile("newest", "26.05", release="forky")
HYPERPOD = Profile(
    "hyperpod",
    "24.11",
    release="trixie",
    tracking=BY_CGROUP,
    step_retry=True,
    mode=LifecycleMode.ON_INIT_COMPLETE,
)
HYPERPOD_2026 = replace(HYPERPOD, name="hyperpod-2026", second_slurm="26.05", second_release="forky", agents=True)

PROFILES: Dict[str, Profile] = {profile.name: profile for profile in (STOCK, TODAY, NEWEST, HYPERPOD, HYPERPOD_2026)}


def profile_by_name(name: str) -> Profile:
    """Return the profile of a name. Raises RehearsalError when there is none."""
    if name not in PROFILES:
        raise RehearsalError(f"no profile {name}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]
