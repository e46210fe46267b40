"""`job doctor`'s facts: what the running Slurm says of its configuration, in whatever form its version prints it.

A setting that is printed in no form known here is `untold`, which is something else than not set.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from hyperpod_kit import descriptors
from hyperpod_kit.errors import RunError, Unreachable
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, hyperpod, versions
from hyperpod_kit.slurm.versions import Version

HOOKS = "/opt/hyperpod-kit/current/slurm"
"""Where the bundle puts what Slurm runs: local on every node."""

HOOK_FILES = (("prolog", "prolog.sh"), ("epilog", "epilog.sh"))

PRINTED = ("prologflags", "requeueexithold", "schedulerparameters", "authinfo", "taskplugin")
"""Settings that every Slurm known here prints, set or not; without its line a setting is not judged."""


@dataclass(frozen=True)
class SlurmFacts:
    """What was seen. `config`: `scontrol show config`, keys in lower case.

    option: whether sbatch knows --auto-resume, None when that could not be asked; hooks: setting -> what is wrong;
    untold: settings that this Slurm prints in no form known here; task_prologs: programs;
    containers: whether srun knows --container-image (pyxis); nodes: how many there are, 0 when slurmctld did not say;
    descriptors: how many a process may open here at most.
    """

    version: Version
    config: Dict[str, str]
    option: Optional[bool]
    hyperpod: bool
    hooks: Dict[str, str]
    untold: Tuple[str, ...] = ()
    task_prologs: Tuple[str, ...] = ()
    containers: bool = False
    nodes: int = 0
    descriptors: int = 0


def look(runner: Runner, *, hooks: str = HOOKS, mark: str = hyperpod.MARK) -> SlurmFacts:
    """Ask the running Slurm. Raises Unreachable when it does not answer, with what stands between here and there."""
    try:
        done = runner.run(["scontrol", "show", "config"], timeout=control.DEADLINE)
    except RunError as err:
        raise unanswered(err) from err
    config = parse(done.stdout)
    number = versions.parse(config.get("slurm_version", ""))
    wrong: Dict[str, str] = {}
    printed = (*PRINTED, *timeouts(config), *(("maxbatchrequeue",) if number >= versions.MAX_BATCH_REQUEUE else ()))
    untold = [key for key in printed if key not in config]
    for key, name in HOOK_FILES:
        found = hook_entries(config, key, number)
        if found is None:
            untold.append(key)
        else:
            wrong[key] = hook_problem(found, name, hooks)
    option = control.has_option(runner, "sbatch", "--auto-resume")
    return SlurmFacts(
        number,
        config,
        option,
        os.path.isdir(mark),
        {key: why for key, why in wrong.items() if why},
        tuple(untold),
        tuple(hook_entries(config, "taskprolog", number) or ()),
        control.has_option(runner, "srun", "--container-image") is True,
        _nodes(runner),
        descriptors.hard(),
    )


def _nodes(runner: Runner) -> int:
    try:
        return len(control.all_nodes(runner))
    except (RunError, ValueError):
        return 0


def unanswered(err: RunError) -> Unreachable:
    """Why Slurm could not be asked. Its own words for a munged that is down are about authentication."""
    words = err.stderr + err.stdout
    if err.returncode == 127:
        return Unreachable(f"cannot ask Slurm: {err.message}", hint="run it where scontrol works: a login node")
    local = re.search(r"Munge encode failed: Failed to (?:access|connect to) \"?([^\":]+)\"?: ([^(\n]+)", words)
    if local:
        return Unreachable(
            f"munged does not run on this node ({local.group(1)}: {local.group(2).strip()}): no Slurm "
            "command works here",
            hint="sudo systemctl start munge",
        )
    other = re.search(r"Munge (?:en|de)code failed: ([^(\n]+)|Protocol authentication error", words)
    if other:
        return Unreachable(
            f"cannot ask Slurm: {(other.group(1) or other.group(0)).strip()}: munge of this node and "
            "of the controller do not agree",
            hint="compare on both: sha256sum /etc/munge/munge.key; date; systemctl status munge",
        )
    return Unreachable(f"cannot ask Slurm: {err.message}", hint="on the controller: systemctl status slurmctld")


def hook_entries(config: Dict[str, str], key: str, number: Version) -> Optional[List[str]]:
    """The programs of one hook, in either form that Slurm prints; None when this is neither."""
    if key in config:
        return [word for word in re.split(r"[,\s]+", config[key]) if word]
    listed = sorted(
        (int(match.group(1)), value)
        for match, value in ((re.fullmatch(rf"{key}\[(\d+)\]", name), value) for name, value in config.items())
        if match
    )
    lists = any(re.fullmatch(r"(prolog|epilog)\[\d+\]", name) for name in config)
    known = versions.LISTED_HOOKS <= number <= versions.NEWEST
    if listed or ((known or lists) and key != "taskprolog"):
        return [value for _, value in listed if value]
    return None


def parse(text: str) -> Dict[str, str]:
    """`Key = value` lines; Slurm's words for nothing become ""."""
    found: Dict[str, str] = {}
    for row in text.splitlines():
        key, given, value = row.partition("=")
        if given and key.strip():
            value = value.strip()
            found[key.strip().lower()] = "" if value in ("(null)", "n/a", "N/A") else value
    return found


def hook_problem(configured: List[str], name: str, place: str) -> str:
    """What is wrong with one hook as this machine sees it; "" when nothing is."""
    ours = os.path.join(place, name)
    if ours not in configured:
        return f"is {', '.join(configured)}" if configured else "is not set"
    if not os.path.isfile(ours):
        return f"{ours} is not there"
    return "" if os.access(ours, os.X_OK) else f"{ours} is not executable"


def timeouts(config: Mapping[str, str]) -> Tuple[str, ...]:
    """The settings that bound the hooks, as this Slurm prints them: a bound for each, or one for both."""
    apart = any(key in config for key in versions.HOOK_TIMEOUTS)
    return versions.HOOK_TIMEOUTS if apart else (versions.ONE_HOOK_TIMEOUT,)
