"""replace-node, reboot-node, delete-node and health-check."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

import click

from hyperpod_kit.cli.cluster.jobs_first import JobsFirst, drain_options
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster
from hyperpod_kit.cli.terminal.confirm import require_confirmation
from hyperpod_kit.cli.terminal.options import cluster_and_nodes_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_to_stderr

if TYPE_CHECKING:
    from hyperpod_kit.aws.sagemaker import Batched, SageMaker
    from hyperpod_kit.cluster.nodes import ClusterNode
    from hyperpod_kit.remote.draining.vacate import Vacated
    from hyperpod_kit.remote.live_cluster import LiveCluster


DEEP_HEALTH_CHECKS = ("InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation")
"""Of AWS; each asks more nodes, or more of them, than the one before."""

COMES_BACK = 1800.0
"""Seconds in which a node that was restarted is heard of again."""


def node_command_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add NODE…, the cluster options, --yes, --dry-run, --json and the drain options to a command."""
    for option in (
        json_option,
        click.option("--dry-run", is_flag=True, help="Show which nodes are selected, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        drain_options,
        functools.partial(cluster_and_nodes_options, required=True),
    ):
        command = option(command)
    return command


class Verb(NamedTuple):
    """What is done to nodes. `command`: its name; `done`: `replaced`; `question`: with {} for the nodes; `stay`:
    whether the same nodes come back; `reserves`: whether AWS itself keeps jobs off them from then on."""

    act: Callable[[SageMaker, str, Sequence[ClusterNode]], Batched]
    command: str
    done: str
    question: str
    stay: bool = False
    reserves: bool = False


@click.command("replace-node")
@node_command_options
def replace_node(**given: Any) -> int:
    """Replace nodes with new ones.

    NODE is an instance id, an address, a host name as in Slurm, or GROUP/INDEX as listed. CONFIG ends in .json, .yaml
    or .yml.

    The jobs on these nodes are listed first. --when-idle accepts no new jobs there and waits until the running ones
    have ended; --drain also requeues the jobs that Slurm may requeue. When --drain-timeout has passed, nothing is
    sent, the nodes accept jobs again, and the exit code is 3.

    The exit code is 1 when AWS refuses some of the nodes; the others are being replaced in that case.

    \b
    Examples:
      hyperpod-kit replace-node worker-group/0 --when-idle
      hyperpod-kit replace-node i-0123456789abcdef0 10.1.2.3 --yes
    """
    from hyperpod_kit.cluster.nodes import replace_nodes

    verb = Verb(replace_nodes, "replace-node", "replaced", "Replace {}? Everything on their own disks is lost.")
    return _run_node_command(verb, **given)


@click.command("reboot-node")
@node_command_options
def reboot_node(**given: Any) -> int:
    """Reboot nodes. Data on their disks is kept, except in /opt/dlami/nvme. NODE as for replace-node.

    No lifecycle script runs at a reboot: systemd units bring back the mounts and their timer.

    The jobs on these nodes are listed first. --when-idle accepts no new jobs there and waits until the running ones
    have ended; --drain also requeues the jobs that Slurm may requeue. When --drain-timeout has passed, nothing is
    sent, the nodes accept jobs again, and the exit code is 3. With these options the command ends when the nodes are
    back and accept jobs.

    \b
    Examples:
      hyperpod-kit reboot-node worker-group/0
    """
    from hyperpod_kit.cluster.nodes import reboot_nodes

    verb = Verb(reboot_nodes, "reboot-node", "restarted", "Restart {}? What runs on them ends.", stay=True)
    return _run_node_command(verb, **given)


@click.command("delete-node")
@node_command_options
def delete_node(**given: Any) -> int:
    """Delete nodes without replacing them. NODE as for replace-node.

    AWS lowers the node counts of their instance groups. The configuration still has the old counts: lower `count`
    there too, or the next update-cluster creates new nodes.

    The jobs on these nodes are listed first. --when-idle accepts no new jobs there and waits until the running ones
    have ended; --drain also requeues the jobs that Slurm may requeue. When --drain-timeout has passed, nothing is
    sent, the nodes accept jobs again, and the exit code is 3.

    \b
    Examples:
      hyperpod-kit delete-node worker-group/7 --dry-run
      hyperpod-kit delete-node i-0123456789abcdef0 --yes
    """
    from hyperpod_kit.cluster.nodes import delete_nodes

    question = "Delete {}? Everything on their own disks is lost, and they are not replaced."
    verb = Verb(delete_nodes, "delete-node", "deleted", question)
    return _run_node_command(verb, **given)


@click.command("health-check")
@click.option(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice(DEEP_HEALTH_CHECKS),
    default=DEEP_HEALTH_CHECKS[:2],
    show_default=True,
    help="Which checks; may be repeated.",
)
@node_command_options
def health_check(checks: tuple[str, ...], **given: Any) -> int:
    """Have AWS test the hardware of nodes that are there: GPUs, memory, network. NODE as for replace-node.

    The checks take an hour or more. AWS keeps jobs off the nodes meanwhile by a reservation in Slurm, and restarts or
    replaces nodes that fail. `hyperpod-kit operations` shows how it stands, and list-cluster-nodes the state of each
    node. Jobs that run on the nodes disturb the checks, and are disturbed by them.

    The jobs on these nodes are listed first. --when-idle lets no new job start there and waits until those that run
    have ended; --drain also queues jobs again that Slurm may queue again. When --drain-timeout is over, nothing is
    sent, the nodes take jobs again, and the exit code is 3. With these options the nodes are undrained once AWS has
    taken the request.

    \b
    Examples:
      hyperpod-kit health-check worker-group/0 --when-idle
      hyperpod-kit health-check worker-group/0 worker-group/1 --check InstanceStress --yes
    """
    from hyperpod_kit.cluster.nodes import start_health_check

    verb = Verb(
        functools.partial(start_health_check, checks=checks),
        "health-check",
        "checked",
        "Check {}? No job starts there for an hour or more, and nodes that fail are restarted or replaced.",
        reserves=True,
    )
    return _run_node_command(verb, **given)


def _let_jobs_in_again(first: JobsFirst, live: LiveCluster, verb: Verb, vacated: Optional[Vacated]) -> None:
    """On nodes that stay: at once where AWS reserves them, else when they have been restarted."""
    if verb.reserves:
        first.undrain_nodes(vacated)
    elif verb.stay:
        first.wait_for_restart_and_undrain(live, vacated, COMES_BACK)


def _run_node_command(
    verb: Verb,
    *,
    nodes: tuple[str, ...],
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    first: JobsFirst,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    from hyperpod_kit.cluster.command_arguments import cluster_arguments
    from hyperpod_kit.cluster.nodes import list_nodes, resolve_nodes, slurm_node_name

    chosen = resolve_cluster(config, cluster, region)
    live = make_live_cluster(chosen)
    sagemaker = live.sagemaker
    targets = resolve_nodes(list_nodes(sagemaker, chosen.name), nodes)
    listed = ", ".join(dict.fromkeys(f"{node.instance_id} ({node.group})" for node in targets))
    names = {node.instance_id: slurm_node_name(node.address) for node in targets if node.address}
    first.load_jobs_on_nodes(live, list(names.values()))
    if dry_run:
        print_to_stderr(f"would be {verb.done}: {listed}")
        first.print_jobs()
        if as_json:
            print_json(
                verb.command, {"cluster": chosen.name, "nodes": [asdict(node) for node in targets], **first.to_dict()}
            )
        return 0
    first.print_jobs()
    require_confirmation(first.confirmation_question_prefix() + verb.question.format(listed), yes=yes)
    vacated = first.vacate_if_requested(list(names.values()), verb.command)
    try:
        done, refused = verb.act(sagemaker, chosen.name, targets)
    except BaseException:
        first.undrain_nodes(vacated)
        raise
    refused_names = [names[entry["NodeId"]] for entry in refused if entry["NodeId"] in names]
    first.undrain_nodes(vacated, refused_names)
    if as_json:
        print_json(verb.command, {"cluster": chosen.name, verb.done: done, "refused": refused, **first.to_dict()})
    if done:
        print_to_stderr(f"being {verb.done}: {', '.join(done)}")
    if done:
        _let_jobs_in_again(first, live, verb, first.vacated_without_nodes(vacated, refused_names))
    if refused:
        print_to_stderr(f"error: {len(refused)} of {len(refused) + len(done)} nodes are not being {verb.done}")
        for entry in refused:
            print_to_stderr(f"  {entry['NodeId']}: {entry['ErrorCode']}: {entry['Message']}")
    next_command = "wait" if done else "list-cluster-nodes"
    print_to_stderr(f"next: hyperpod-kit {next_command} {cluster_arguments(chosen.name, chosen.region)}")
    if refused:
        return 1
    return 0
