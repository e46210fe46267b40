"""update-cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import click

from hyperpod_kit.cli.cluster.jobs_first import JobsFirst, drain_options
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster
from hyperpod_kit.cli.cluster.waiting import interval_option, timeout_option, wait_until_ready
from hyperpod_kit.cli.terminal.confirm import require_confirmation
from hyperpod_kit.cli.terminal.options import Cluster, config_argument, json_option
from hyperpod_kit.cli.terminal.output import print_json, print_table, print_to_stderr, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import ClusterError
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.cluster.nodes import ClusterNode
    from hyperpod_kit.cluster.update import Update
    from hyperpod_kit.remote.live_cluster import LiveCluster


@click.command("update-cluster")
@config_argument
@click.option("--dry-run", is_flag=True, help="Show what would change, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation, even when nodes are deleted.")
@drain_options
@click.option("--wait", "then_wait", is_flag=True, help="Return when every node runs.")
@timeout_option
@interval_option
@json_option
def update_cluster(
    config: Path,
    dry_run: bool,
    yes: bool,
    first: JobsFirst,
    then_wait: bool,
    timeout: float,
    interval: float,
    as_json: bool,
) -> int:
    """Apply the configuration to the cluster, after showing what changes.

    Some changes are made in place, some only affect nodes created later, and some are not supported by the API: in
    that case nothing is sent and the exit code is 1. With --wait the exit code is also 1 when AWS rolls the change
    back. A change that was sent already is not sent again, so the command can be repeated.

    When a group shrinks, AWS chooses the nodes to remove, and the jobs on all of its nodes are listed. With
    --when-idle or --drain the command chooses them, nodes without jobs first: it accepts no new jobs on them, waits
    until they are idle, deletes them by id, and sends the rest of the change. When --drain-timeout has passed, nothing
    is sent, the nodes accept jobs again, and the exit code is 3.

    \b
    Examples:
      hyperpod-kit update-cluster --dry-run
      hyperpod-kit update-cluster --wait
      hyperpod-kit update-cluster --when-idle --drain-timeout 7200 --wait
      hyperpod-kit update-cluster --dry-run --json  # the changes and the request
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.stored import THREADS
    from hyperpod_kit.bundle.upload import require_uploaded
    from hyperpod_kit.cluster import create, update
    from hyperpod_kit.cluster.bundle_formats import find_unsupported_bundles, replacement_advice
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.render_bundle_and_check_request(settings)
    cluster = make_live_cluster(Cluster(settings.cluster.name, settings.cluster.region, settings))
    sagemaker = cluster.sagemaker
    name = settings.cluster.name
    live = sagemaker.describe_cluster(name)
    update_plan = update.plan_update(live, planned.request, settings.parameters.controller_group)
    unsupported = find_unsupported_bundles(live, sagemaker, lambda bucket: Bucket(bucket, settings.cluster.region))
    for group in unsupported:
        print_to_stderr(replacement_advice(group, settings.parameters.controller_group))
    leaving: list[ClusterNode] = []
    if update_plan.can_api_do_all and update_plan.destroyed_node_count:
        leaving = _load_jobs_and_choose_leaving_nodes(cluster, update_plan, first)
    if as_json:
        print_json(
            "update-cluster",
            {
                "cluster": name,
                "possible": update_plan.can_api_do_all,
                "changes": [dataclass_to_json(change) for change in update_plan.changes],
                "request": update_plan.request,
                **first.to_dict(),
                "leaving": [node.instance_id for node in leaving],
                "unsupported_bundles": [dataclass_to_json(group) for group in unsupported],
            },
        )
    else:
        print_changes(update_plan)
    if not update_plan.can_api_do_all:
        print_to_stderr(f"cluster {name} cannot be changed to match {config}; nothing was sent")
        return 1
    if update_plan.destroyed_node_count:
        if leaving:
            print_to_stderr(f"nodes to delete: {', '.join(f'{node.instance_id} ({node.group})' for node in leaving)}")
        first.print_jobs(
            "these nodes" if leaving else f"the nodes of {', '.join(update_plan.leaving_node_counts_by_group)}"
        )
    if dry_run:
        return 0
    if update_plan.changes:
        update.require_aws_would_accept_update(live, update_plan)
        if update_plan.destroyed_node_count:
            beginning = first.confirmation_question_prefix(aws_chooses=not first.is_requested)
            loss = counted(
                update_plan.destroyed_node_count,
                "node and everything on its own disks",
                "nodes and everything on their own disks",
            )
            require_confirmation(f"{beginning}{loss} will be deleted. Continue?", yes=yes)
        if planned.bundle is not None:
            bucket = Bucket(planned.bundle.bucket, settings.cluster.region, connections=THREADS)
            require_uploaded(planned.bundle, bucket)
        if leaving:
            _vacate_and_delete_nodes(cluster, leaving, first)
        if not update_plan.only_shrinks_remaining_groups or len(leaving) < update_plan.destroyed_node_count:
            if leaving and live.get("NodeProvisioningMode") != "Continuous":
                shrunk = update.target_counts_after_leaving(live, [node.group for node in leaving])
                wait_until_ready(sagemaker, name, timeout=timeout, interval=interval, desired=shrunk)
            sagemaker.update_cluster(update_plan.request)
        print_to_stderr(f"cluster {name} is being updated")
    else:
        print_to_stderr(f"cluster {name} matches {config}")
    if then_wait:
        stale = str(live.get("FailureMessage", ""))
        wait_until_ready(
            sagemaker, name, timeout=timeout, interval=interval, desired=update_plan.desired, stale_failure=stale
        )
        print_to_stderr(f"cluster {name} is ready")
    if update_plan.groups_needing_replacement:
        groups = update_plan.groups_needing_replacement
        replacements = _describe_how_to_replace_nodes(groups, settings.parameters.controller_group)
        print_to_stderr(f"next: {replacements}")
    return 0


def _load_jobs_and_choose_leaving_nodes(
    cluster: LiveCluster, update_plan: Update, first: JobsFirst
) -> list[ClusterNode]:
    """Load the jobs on the nodes of groups that become smaller; return the nodes that go, [] when AWS
    chooses them."""
    from hyperpod_kit.cluster.nodes import slurm_node_name, sort_for_removal

    members = [
        node
        for node in cluster.list_nodes_not_being_removed()
        if node.group in update_plan.leaving_node_counts_by_group
    ]
    first.load_jobs_on_nodes(cluster, [slurm_node_name(node.address) for node in members if node.address])
    if not first.is_requested:
        return []
    busy = Counter(name for job in first.jobs for name in job.nodes)
    leaving = sort_for_removal(members, {node.instance_id: busy[slurm_node_name(node.address)] for node in members})
    chosen: list[ClusterNode] = []
    for group, count in update_plan.leaving_node_counts_by_group.items():
        chosen += [node for node in leaving if node.group == group][:count]
    first.unlist_jobs_not_on_nodes([slurm_node_name(node.address) for node in chosen])
    return chosen


def _vacate_and_delete_nodes(cluster: LiveCluster, leaving: Sequence[ClusterNode], first: JobsFirst) -> None:
    """Drain these nodes, wait until they are empty, and delete them.

    Raises ClusterError when AWS refuses one of them.
    """
    from hyperpod_kit.cluster import nodes
    from hyperpod_kit.cluster.command_arguments import cluster_arguments
    from hyperpod_kit.cluster.nodes import slurm_node_name

    names = {node.instance_id: slurm_node_name(node.address) for node in leaving if node.address}
    vacated = first.vacate_if_requested(list(names.values()), "update-cluster")
    try:
        done, refused = nodes.delete_nodes(cluster.sagemaker, cluster.name, leaving)
    except BaseException:
        first.undrain_nodes(vacated)
        raise
    if done:
        print_to_stderr(f"being deleted: {', '.join(done)}")
    if refused:
        first.undrain_nodes(vacated, [names[entry["NodeId"]] for entry in refused if entry["NodeId"] in names])
        refusals = "; ".join(f"{entry['NodeId']}: {entry['ErrorCode']}: {entry['Message']}" for entry in refused)
        raise ClusterError(
            f"AWS refused to delete {len(refused)} of {len(leaving)} nodes: {refusals}",
            hint=f"hyperpod-kit wait {cluster_arguments(cluster.name, cluster.region)}, then repeat the command",
        )


def _describe_how_to_replace_nodes(groups: Sequence[str], controller: str) -> str:
    """Say how existing nodes come to a change that only new ones get."""
    ways = []
    if set(groups) - {controller}:
        ways.append(
            "hyperpod-kit replace-node for the nodes that need the change, or hyperpod-kit rollout start to change "
            "them in place"
        )
    if controller in groups:
        ways.append(f"{controller} cannot be replaced: hyperpod-kit rollout start installs a bundle on it in place")
    return "; ".join(ways)


def print_changes(update_plan: Update) -> None:
    """Print a table with one line for each change; nothing without changes."""
    from hyperpod_kit.cluster.update import format_value

    if not update_plan.changes:
        return
    grid = TextTable(("WHERE", "WHAT", *(Column(head, folds=True) for head in ("NOW", "NEW", "HOW"))))
    for change in update_plan.changes:
        loss = ""
        if change.destroys:
            loss = f"deletes {counted(change.destroys, 'node')}"
        note = "; ".join(filter(None, (change.note, loss)))
        note_text = ""
        if note:
            note_text = ": "
        grid.add_row(
            *map(
                table_cell,
                (
                    change.where,
                    change.field,
                    format_value(change.before),
                    format_value(change.after),
                    f"{change.how}{note_text}{note}",
                ),
            )
        )
    print_table(grid)
