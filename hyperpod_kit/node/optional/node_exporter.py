"""Prometheus' exporter of the node, told where this toolkit leaves its metrics; the controller adds Slurm's to them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import List

from hyperpod_kit.errors import NodeError, RunError
from hyperpod_kit.model.optional_steps import NodeExporter
from hyperpod_kit.model.states import Role
from hyperpod_kit.node.machine import deferred_actions, systemd
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different, write_volatile
from hyperpod_kit.node.machine.step import StepOutcome
from hyperpod_kit.node.optional import software
from hyperpod_kit.node.optional.optional_step import OptionalStep
from hyperpod_kit.node.optional.software import Software
from hyperpod_kit.slurm import heads
from hyperpod_kit.untrusted import by_descriptor

EXPORTER = Software(("/usr/bin/prometheus-node-exporter",), ("node-exporter",))
UNIT = "prometheus-node-exporter.service"
RESTART = "node-exporter-restart"
DROP_IN = """\
# Written by hyperpod-kit from the bundle's configuration: change that, not this file.
[Service]
ExecStart=
ExecStart={program} --web.listen-address={listen} --collector.textfile.directory={directory}
"""
NODE_STATES, JOB_STATES = ("allocated", "down", "drained", "idle", "mixed"), ("pending", "running")
"""Said when there is none, too: an alarm on a metric that is not there never rings."""
SLURM_METRICS = "hyperpod_kit_slurm_jobs.prom"
"""A file of its own: the guard of Slurm writes hyperpod_kit_slurm.prom on the same node."""


def _configuration(node: Node) -> NodeExporter:
    configuration = node.config.steps.node_exporter
    assert configuration is not None, "the step is on"
    return configuration


def metrics_directory(node: Node) -> str:
    """Where metrics are left as text, as the exporter is told."""
    return node.config.health.textfile_directory or "/var/lib/node_exporter/textfile_collector"


def _drop_in_text(node: Node) -> str:
    return DROP_IN.format(
        program=EXPORTER.programs[0], listen=_configuration(node).listen, directory=metrics_directory(node)
    )


def _drop_in_path(node: Node) -> str:
    return node.paths.unit(f"{UNIT}.d/hyperpod-kit.conf")


def _apply_node_exporter(node: Node) -> StepOutcome:
    done = [software.ensure_installed(node, EXPORTER)]
    by_descriptor.make_directories(node.paths.under_root(metrics_directory(node)), shared=True)
    if read_text(_drop_in_path(node)) != _drop_in_text(node):
        deferred_actions.record_action(node, RESTART)
        write_if_different(_drop_in_path(node), _drop_in_text(node))
        done.append(f"set its directory {metrics_directory(node)}")
    if deferred_actions.is_recorded(node, RESTART) or systemd.needs_daemon_reload(node, [UNIT]):
        systemd.daemon_reload(node)
    systemd.enable(node, UNIT)
    try:
        if deferred_actions.is_recorded(node, RESTART):
            node.runner.run(["systemctl", "restart", UNIT], timeout=60)
        elif systemd.start(node, UNIT, timeout=60):
            done.append("started it")
    except RunError as err:
        raise NodeError(f"the exporter does not start: {systemd.last_log_line(node, UNIT) or err.message}") from err
    deferred_actions.delete_action_record(node, RESTART)
    summary = "; ".join(part for part in done if part)
    return StepOutcome(bool(summary), summary)


def _describe_pending_changes(node: Node) -> str:
    runs = systemd.is_enabled(node, UNIT) and systemd.is_active(node, UNIT)
    parts = [software.describe_pending_install(node, EXPORTER)]
    if read_text(_drop_in_path(node)) != _drop_in_text(node):
        parts.append(f"write {_drop_in_path(node)}")
    if not runs:
        parts.append(f"enable and start {UNIT}")
    if runs and deferred_actions.is_recorded(node, RESTART):
        parts.append(f"restart {UNIT}")
    return "; ".join(part for part in parts if part)


def _undo_node_exporter(node: Node) -> str:
    node.runner.run(["systemctl", "disable", "--now", "--quiet", UNIT], timeout=60, check=False)
    for path in (_drop_in_path(node), node.paths.under_root(f"{metrics_directory(node)}/{SLURM_METRICS}")):
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(path)
    systemd.daemon_reload(node)
    return "the exporter is stopped"


def write_slurm_metrics(node: Node) -> None:
    """Query Slurm and write how many nodes and jobs are in each state; nothing on other nodes than the
    controller. Where another controller acts, its file of them is deleted here. Raises RunError."""
    if node.facts.role != Role.CONTROLLER:
        return
    if node.config.controllers > 1 and heads.query_other_acting_controller(node.runner, node.paths.scontrol):
        with contextlib.suppress(FileNotFoundError):  # counted twice, a sum over the nodes would be wrong
            by_descriptor.unlink(node.paths.under_root(f"{metrics_directory(node)}/{SLURM_METRICS}"))
        return
    bin_ = os.path.dirname(node.paths.scontrol)
    nodes = _run_and_count_states(node, [f"{bin_}/sinfo", "--noheader", "--Node", "--format", "%N %T"], unique=True)
    jobs = _run_and_count_states(node, [f"{bin_}/squeue", "--noheader", "--format", "%i %T"], unique=False)
    lines: List[str] = []
    for name, what, counts, always in (("nodes", "Nodes", nodes, NODE_STATES), ("jobs", "Jobs", jobs, JOB_STATES)):
        lines += [
            f"# HELP hyperpod_kit_slurm_{name} {what} in each state, as Slurm says.",
            f"# TYPE hyperpod_kit_slurm_{name} gauge",
        ]
        lines += [
            f'hyperpod_kit_slurm_{name}{{state="{state}"}} {counts[state]}' for state in sorted({*counts, *always})
        ]
    write_volatile(node.paths.under_root(f"{metrics_directory(node)}/{SLURM_METRICS}"), "\n".join(lines) + "\n")


def _run_and_count_states(node: Node, argv: List[str], *, unique: bool) -> Counter[str]:
    """Run the command, and return how many of its lines are in each state; a node that is in several
    partitions counts once."""
    lines = node.runner.run(argv, timeout=30).stdout.splitlines()
    if unique:
        lines = list(dict.fromkeys(lines))
    pairs = [line.split() for line in lines]
    # `idle*` does not answer, `mixed-` is planned: Slurm's marks behind the word are no states of their own.
    return Counter(pair[1].lower().rstrip("*~#!%$@^-+") for pair in pairs if len(pair) == 2)


STEP = OptionalStep("node_exporter", _apply_node_exporter, _describe_pending_changes, _undo_node_exporter)
