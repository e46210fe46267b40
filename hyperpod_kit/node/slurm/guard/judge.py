"""From the guard's facts to what is wrong with Slurm on this node. Pure: a case a line in tests.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.node.slurm.guard.collect import STATE, ControllerFacts, PlaneFacts, is_without_slurm
from hyperpod_kit.node.slurm.hooks import kit_block_lines, parse_slurm_conf_settings
from hyperpod_kit.slurm import running_config, versions
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.node_reasons import finding_for_node_state_or_none
from hyperpod_kit.slurm.unanswered import COMPARE

APPLY = "hyperpod-kit node apply"
UNBUILT = "plugin-not-buildable"
"""A node without headers or a compiler lacks a convenience: nothing that is there is known to be wrong."""

RECONFIGURE = "scontrol reconfigure"


def judge(facts: PlaneFacts) -> List[SlurmFinding]:
    """Everything that is wrong, causes before what follows from them."""
    if is_without_slurm(facts):
        detail = "scontrol is not on this node: Slurm cannot be queried"
        return [SlurmFinding("no-slurm", detail, "ls -l /opt/slurm/bin", fault=facts.traces)]
    return [
        *_munge_or_unreachable_findings(facts),
        *_daemon_findings(facts),
        *_hook_file_findings(facts),
        *(_controller_findings(facts.controller) if facts.controller else ()),
        *_fetched_config_findings(facts),
        *_plugin_findings(facts),
        *_version_mismatch_findings(facts),
        *_node_state_findings(facts),
    ]


def _munge_or_unreachable_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    if facts.munge:
        yield SlurmFinding(
            "munge-down",
            f"munged of this node does not answer: {facts.munge}: no Slurm command works on this node",
            "systemctl status munge; journalctl -u munge",
        )
    elif facts.barrier is not None:
        yield SlurmFinding(facts.barrier.barrier.value, facts.barrier.detail, facts.barrier.remedy or COMPARE)


def _daemon_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    if facts.daemon_runs is False:
        name = facts.daemon.rpartition(".")[0]
        yield SlurmFinding(f"{name}-down", f"{name} does not run on this node", f"systemctl status {name}")


def _hook_file_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    for path, wrong in facts.hooks.items():
        yield SlurmFinding("hook-file", f"{path} {wrong} on this node: Slurm runs it for each job", APPLY)


def _controller_findings(facts: ControllerFacts) -> Iterator[SlurmFinding]:
    if facts.problem:
        yield SlurmFinding(
            "config-unknown", f"the kit's lines of slurm.conf cannot be determined: {facts.problem}", APPLY
        )
        return
    differing = [path for path, text in facts.expected_texts.items() if facts.texts.get(path) != text]
    if differing:
        yield SlurmFinding("block-missing", f"the kit's lines are wrong in {', '.join(differing)}", APPLY)
    for note in facts.notes:
        if note.startswith(("Prolog ", "Epilog ")):
            yield SlurmFinding(
                "overridden", f"{note}: the kit's setting is not in force", "hyperpod-kit job doctor", fault=False
            )
    if facts.config is None:
        return
    ineffective = [
        name for name, value in settings_not_in_force(facts.expected_texts.get(facts.slurm_conf, ""), facts.config)
    ]
    names = [name for name in ineffective if name.lower() != STATE]
    if names:
        yield SlurmFinding(
            "block-not-in-force",
            f"the running slurmctld does not use the kit's {', '.join(names)}",
            f"{RECONFIGURE}; if that does not help: {APPLY}",
        )
    state_directory = parse_slurm_conf_settings(facts.expected_texts.get(facts.slurm_conf, "")).get(STATE, "")
    if len(names) < len(ineffective) and not facts.has_state_in(state_directory):
        yield SlurmFinding(
            "state-elsewhere",
            f"slurmctld keeps its state in {facts.config.get(STATE)}, expected {state_directory}: the guard does not "
            "move the state",
            f"{APPLY}, which compares both copies and keeps the newer",
        )


def settings_not_in_force(conf: str, config: Mapping[str, str]) -> List[Tuple[str, str]]:
    """(key, value) of each line of our block by which the running slurmctld does not go."""
    pairs = [
        (key.strip(), value.strip()) for key, given, value in _partition_setting_lines(kit_block_lines(conf)) if given
    ]
    return [(key, value) for key, value in pairs if running_config.is_in_force(config, key, value) is False]


def _partition_setting_lines(lines: Sequence[str]) -> Iterator[Tuple[str, str, str]]:
    return (line.partition("=") for line in lines if not line.lstrip().startswith("#"))


def _fetched_config_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    if facts.fetched is False:
        yield SlurmFinding(
            "hooks-not-here",
            "the slurm.conf that this node's slurmd uses has none of the kit's lines: no mount gate, no Epilog",
            f"on the controller: {RECONFIGURE}; on this node: systemctl restart slurmd",
        )


def _plugin_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    if facts.plugin.error and facts.unbuildable and not facts.has_plugin:
        yield SlurmFinding(
            UNBUILT,
            f"this Slurm lacks the kit's plugin, and it cannot be built on this node: {facts.unbuildable}: sbatch has "
            "no option --auto-resume, and a bare srun gets no checkpoint to resume from",
            "`hyperpod-kit job submit` and `job run` do without it; or install Slurm's headers and a "
            "compiler on this node, then: hyperpod-kit node slurm --mend",
            fault=False,
        )
    elif facts.plugin.error:
        obstacle = ""
        if facts.unbuildable:
            obstacle = f"; it cannot be built on this node: {facts.unbuildable}"
        yield SlurmFinding(
            "plugin-not-loaded",
            f"Slurm does not load the kit's plugin: {facts.plugin.error}: --auto-resume is unknown, and a bare srun "
            f"starts from scratch{obstacle}",
            "install Slurm's headers and a compiler on this node, then: hyperpod-kit node slurm --mend",
        )
    elif facts.plugin.offers is False:
        yield SlurmFinding(
            "plugin-not-listed",
            "sbatch has no option --auto-resume on this node: plugstack.conf does not name the kit's plugin",
            f"on the controller: {APPLY}",
        )


def _version_mismatch_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    running, installed = (
        versions.parse_major_minor_or_zero(facts.running),
        versions.parse_major_minor_or_zero(facts.installed),
    )
    if (0, 0) in (running, installed) or running == installed:
        return
    daemon = facts.daemon.rpartition(".")[0] or "slurmd"
    yield SlurmFinding(
        "two-slurms",
        f"{daemon} of {facts.running} runs, but the programs of this node are of {facts.installed}: a plugin that "
        "fits one does not load in the other",
        f"systemctl restart {daemon}, the controller's first",
    )


def _node_state_findings(facts: PlaneFacts) -> Iterator[SlurmFinding]:
    if facts.is_known is False:
        yield SlurmFinding(
            "node-unknown",
            f"slurmctld has no node {facts.node}: the node gets no jobs",
            "on the controller: grep NodeName /opt/slurm/etc/slurm.conf",
        )
    if facts.slurm_node is not None:
        finding: Optional[SlurmFinding] = finding_for_node_state_or_none(
            facts.node, facts.slurm_node.state, facts.slurm_node.reason
        )
        if finding is not None:
            yield finding
