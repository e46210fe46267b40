"""The guard's facts: a few questions, each with a deadline, none of which holds a lock of Slurm's or a mount.

On the controller slurmctld is asked for its configuration, on every other node for that node alone: one small request.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine import systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text
from hyperpod_kit.node.slurm import controller, drain, plugin
from hyperpod_kit.node.slurm.hooks import BEGIN
from hyperpod_kit.slurm import heads, running_config
from hyperpod_kit.slurm.plugin_load import AS_NOBODY, PluginLoad, probe_plugin_load
from hyperpod_kit.slurm.unanswered import Barrier, Unanswered, diagnose_slurm_command_failure

WITHIN = 15.0
"""Seconds for slurmctld's answer; a round of it and the pause between two must stay under a minute."""

MUNGE_WITHIN = 5.0

STATE = "statesavelocation"

DAEMONS: Mapping[str, str] = {Role.CONTROLLER: "slurmctld.service", Role.COMPUTE: "slurmd.service"}
"""A login node has slurmd on some clusters only."""


UNASKED = PluginLoad()


@dataclass(frozen=True)
class ControllerFacts:
    """Of a node that runs slurmctld. config: `scontrol show config`, None without an answer; texts: the files that have
    a block of ours, as they are; expected_texts: as they should be; problem: why the latter cannot be told, "" when it
    can; notes: what somebody else has set in our place; acting: another controller's name that acts instead, "" for
    none; leads_to: where the place leads in which slurmctld has its state, "" where it is no link."""

    config: Optional[Mapping[str, str]] = None
    texts: Mapping[str, Optional[str]] = field(default_factory=dict)
    expected_texts: Mapping[str, str] = field(default_factory=dict)
    slurm_conf: str = ""
    problem: str = ""
    notes: Tuple[str, ...] = ()
    acting: str = ""
    leads_to: str = ""

    def has_state_in(self, location: str) -> bool:
        """Whether slurmctld has its state there, by that name or by a link (controller.py)."""
        return bool(location) and location in ((self.config or {}).get(STATE, ""), self.leads_to)


@dataclass(frozen=True)
class PlaneFacts:
    """One look. munge: why munged does not answer this node itself, "" when it does; barrier: why slurmctld was not
    heard; daemon_runs: slurmctld's or slurmd's unit, None where there is none; fetched: whether the configuration that
    slurmd has fetched has our lines, None where it has fetched none; is_known: whether slurmctld knows this node, None
    where it need not; running, installed: versions of the daemon that runs and of the programs that are there;
    unbuildable: why our plugin cannot be built on this node, "" where it can or is not needed; has_plugin: whether a
    file of it is there; traces: whether anything here shows that there is to be a Slurm.
    """

    node: str
    role: str
    munge: str = ""
    barrier: Optional[Unanswered] = None
    daemon: str = ""
    daemon_runs: Optional[bool] = None
    controller: Optional[ControllerFacts] = None
    hooks: Mapping[str, str] = field(default_factory=dict)
    fetched: Optional[bool] = None
    is_known: Optional[bool] = None
    slurm_node: Optional[drain.SlurmNodeStatus] = None
    plugin: PluginLoad = UNASKED
    running: str = ""
    installed: str = ""
    unbuildable: str = ""
    has_plugin: bool = False
    traces: bool = True


def collect_facts(node: Node) -> PlaneFacts:
    """Collect what is to be known of Slurm on this node; takes half a minute at most, when nothing responds."""
    role = node.facts.role
    munge = _probe_munge(node)
    is_controller = role == Role.CONTROLLER
    daemon = DAEMONS.get(role, "")
    barrier: Optional[Unanswered] = None
    controller_facts: Optional[ControllerFacts] = None
    is_known: Optional[bool] = None
    slurm_node: Optional[drain.SlurmNodeStatus] = None
    config: Optional[Mapping[str, str]] = None
    try:
        # Without munge the answer is known: it would cost a request and say the same once more.
        if munge:
            pass
        elif is_controller:
            config = _query_slurm_config(node)
        else:
            is_known, slurm_node = _query_own_node(node)
    except RunError as err:
        barrier = diagnose_slurm_command_failure(err)
    if is_controller:
        controller_facts = _collect_controller_facts(node, config)
    loaded = probe_plugin_load(node.runner, drain.slurm_program_path_or_name(node, "sbatch"), AS_NOBODY)
    running = ""
    if is_controller:
        running = (config or {}).get("slurm_version", "")
    elif slurm_node:
        running = slurm_node.version
    return PlaneFacts(
        node=node.facts.node,
        role=role,
        munge=munge,
        barrier=barrier,
        daemon=daemon,
        daemon_runs=bool(systemd.process_ids_of_unit(node, daemon)) if daemon else None,
        controller=controller_facts,
        hooks=_find_hook_file_problems(node),
        fetched=None if is_controller else _has_fetched_hooks(node),
        is_known=is_known if role == Role.COMPUTE else None,
        slurm_node=slurm_node,
        plugin=loaded,
        running=running,
        installed=_installed_version(node),
        unbuildable=plugin.build_obstacle(node) if loaded.error else "",
        has_plugin=os.path.exists(node.paths.spank_plugin),
        traces=_has_slurm_traces(node),
    )


def _has_slurm_traces(node: Node) -> bool:
    paths = (node.paths.munge_key, node.paths.slurm_conf, node.paths.scontrol)
    return any(os.path.exists(path) for path in paths)


def _probe_munge(node: Node) -> str:
    """Try munge, and return why munged does not sign and verify for this node itself; "" when it does, or
    there is no munge."""
    if not os.path.exists(node.paths.munge_key):
        return ""
    try:
        credential = node.runner.run(["munge", "--no-input"], timeout=MUNGE_WITHIN)
        node.runner.run(["unmunge", "--no-output"], input=credential.stdout, timeout=MUNGE_WITHIN)
    except RunError as err:
        if err.returncode == 127:
            return ""
        return (err.stderr or err.message).strip().splitlines()[-1]
    return ""


def _query_slurm_config(node: Node) -> Mapping[str, str]:
    done = node.runner.run([drain.slurm_program_path_or_name(node, "scontrol"), "show", "config"], timeout=WITHIN)
    return running_config.parse_show_config(done.stdout)


def _query_own_node(node: Node) -> Tuple[bool, Optional[drain.SlurmNodeStatus]]:
    """(whether slurmctld knows this node, what it says of it). Raises RunError when it does not answer."""
    try:
        return True, drain.query_local_node(node, WITHIN)
    except RunError as err:
        if " not found" in err.stdout + err.stderr:
            return False, None
        raise


def _collect_controller_facts(node: Node, config: Optional[Mapping[str, str]]) -> ControllerFacts:
    try:
        expected_texts, notes = controller.expected_files(node)
    except NodeError as err:
        return ControllerFacts(config, problem=err.message)
    several = node.config.controllers > 1 and config is not None
    return ControllerFacts(
        config,
        {path: read_text(path) for path in expected_texts},
        expected_texts,
        node.paths.slurm_conf,
        notes=tuple(notes),
        acting=heads.query_other_acting_controller(node.runner, drain.slurm_program_path_or_name(node, "scontrol"))
        if several
        else "",
        leads_to=_link_target_or_empty(node, (config or {}).get(STATE, "")),
    )


def _link_target_or_empty(node: Node, location: str) -> str:
    """Return the target of the link at `location`, "" where it is none: read from the link alone, for what it
    leads to may hang."""
    try:
        if location:
            return os.readlink(node.paths.under_root(location))
        return ""
    except OSError:
        return ""


def _find_hook_file_problems(node: Node) -> Dict[str, str]:
    """Return what is wrong with the files that the kit's lines name, on this very node."""
    wrong: Dict[str, str] = {}
    for _, name in running_config.HOOK_FILES:
        path = f"{running_config.HOOKS}/{name}"
        real = node.paths.under_root(path)
        if not os.path.isfile(real):
            wrong[path] = "is not there"
        elif not os.access(real, os.X_OK):
            wrong[path] = "is not executable"
    return wrong


def _has_fetched_hooks(node: Node) -> Optional[bool]:
    text = read_text(node.paths.fetched_slurm_conf)
    if text is None:
        return None
    return BEGIN in text or f"{running_config.HOOKS}/" in text


def _installed_version(node: Node) -> str:
    """The version of the programs that /opt/slurm leads to, "" where they do not say."""
    try:
        output = node.runner.run(
            [drain.slurm_program_path_or_name(node, "sbatch"), "--version"], timeout=MUNGE_WITHIN
        ).stdout
    except RunError:
        return ""
    match = re.search(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", output)
    if match:
        return match.group(0)
    return ""


def is_without_slurm(facts: PlaneFacts) -> bool:
    """Whether there is no Slurm on this node at all."""
    return facts.barrier is not None and facts.barrier.barrier is Barrier.NO_PROGRAM
