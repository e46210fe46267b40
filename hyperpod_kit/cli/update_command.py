"""update-cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import click

from hyperpod_kit.cli.confirm import confirm
from hyperpod_kit.cli.jobs_first import JobsFirst, jobs_first
from hyperpod_kit.cli.options import Cluster, config_argument, json_option
from hyperpod_kit.cli.output import cell, console, data, say
from hyperpod_kit.cli.ssh_options import open_cluster
from hyperpod_kit.cli.waiting import interval_option, timeout_option, until_ready
from hyperpod_kit.errors import ClusterError

if TYPE_CHECKING:
    from hyperpod_kit.cluster.nodes import ClusterNode
    from hyperpod_kit.cluster.update import Update
    from hyperpod_kit.remote.live_cluster import LiveCluster


@click.command("update-cluster")
@config_argument
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask, also when nodes go.")
@jobs_first
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
    """Bring the cluster to the configuration; shows first what that means.

    Some of it happens in place, some only on nodes that come from now on, and some the API cannot do at all: then
    nothing is sent, and the exit code is 1. With --wait it is 1 too when AWS gives the change up. A change that was
    sent is not sent again, so the command can be repeated.

    Where a group becomes smaller, AWS chooses which of its nodes go, and the jobs on all of them are listed. With
    --when-idle or --drain the kit chooses: nodes without a job first. It lets no new job start on them, waits until
    they are empty, deletes them by their ids, and sends the rest of the change. When --drain-timeout is over, nothing
    is sent, the nodes take jobs again, and the exit code is 3.

    \b
    Examples:
      hyperpod-kit update-cluster --dry-run
      hyperpod-kit update-cluster --wait
      hyperpod-kit update-cluster --when-idle --drain-timeout 7200 --wait
      hyperpod-kit update-cluster --dry-run --json  # the changes, and the request
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.stored import THREADS
    from hyperpod_kit.bundle.upload import require_uploaded
    from hyperpod_kit.cluster import create, update
    from hyperpod_kit.cluster.bundle_formats import advice, unsupported_bundles
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.plan(settings)
    cluster = open_cluster(Cluster(settings.cluster.name, settings.cluster.region, settings))
    sagemaker = cluster.sagemaker
    name = settings.cluster.name
    live = sagemaker.describe_cluster(name)
    update_plan = update.plan(live, planned.request, settings.parameters.controller_group)
    unsupported = unsupported_bundles(live, sagemaker, lambda bucket: Bucket(bucket, settings.cluster.region))
    for group in unsupported:
        say(advice(group, settings.parameters.controller_group))
    leaving: list[ClusterNode] = []
    if update_plan.possible and update_plan.destroys:
        leaving = _choose_leaving_nodes(cluster, update_plan, first)
    if as_json:
        data(
            {
                "cluster": name,
                "possible": update_plan.possible,
                "changes": [change.to_dict() for change in update_plan.changes],
                "request": update_plan.request,
                **first.to_dict(),
                "leaving": [node.instance_id for node in leaving],
                "unsupported_bundles": [group.to_dict() for group in unsupported],
            }
        )
    else:
        show_changes(update_plan)
    if not update_plan.possible:
        say(f"cluster {name} cannot become what {config} says; nothing was sent")
        return 1
    if update_plan.destroys:
        if leaving:
            say(f"these nodes go: {', '.join(f'{node.instance_id} ({node.group})' for node in leaving)}")
        first.show("these nodes" if leaving else f"the nodes of {', '.join(update_plan.shrinking)}")
    if dry_run:
        return 0
    if update_plan.changes:
        update.require_sendable(live, update_plan)
        if update_plan.destroys:
            beginning = first.question(aws_chooses=not first.is_requested)
            confirm(f"{beginning}{update_plan.destroys} nodes go, with everything on their own disks. Go on?", yes=yes)
        if planned.bundle is not None:
            bucket = Bucket(planned.bundle.bucket, settings.cluster.region, connections=THREADS)
            require_uploaded(planned.bundle, bucket)
        if leaving:
            _take_nodes(cluster, leaving, first)
        if not update_plan.only_shrinks or len(leaving) < update_plan.destroys:
            if leaving and live.get("NodeProvisioningMode") != "Continuous":
                shrunk = update.counts_without(live, [node.group for node in leaving])
                until_ready(sagemaker, name, timeout=timeout, interval=interval, desired=shrunk)
            sagemaker.update_cluster(update_plan.request)
        say(f"cluster {name} is being updated")
    else:
        say(f"cluster {name} is what {config} says")
    if then_wait:
        stale = str(live.get("FailureMessage", ""))
        until_ready(sagemaker, name, timeout=timeout, interval=interval, desired=update_plan.desired, stale=stale)
        say(f"cluster {name} is ready")
    if update_plan.old_groups:
        say(f"next: {_replacements(update_plan.old_groups, settings.parameters.controller_group)}")
    return 0


def _choose_leaving_nodes(cluster: LiveCluster, update_plan: Update, first: JobsFirst) -> list[ClusterNode]:
    """List the jobs on the nodes of groups that become smaller; which nodes go, [] where AWS chooses them."""
    from hyperpod_kit.cluster.nodes import order_for_removal, slurm_name

    members = [node for node in cluster.nodes() if node.group in update_plan.shrinking]
    first.list_jobs(cluster, [slurm_name(node.address) for node in members if node.address])
    if not first.is_requested:
        return []
    busy = Counter(name for job in first.jobs for name in job.nodes)
    leaving = order_for_removal(members, {node.instance_id: busy[slurm_name(node.address)] for node in members})
    chosen: list[ClusterNode] = []
    for group, count in update_plan.shrinking.items():
        chosen += [node for node in leaving if node.group == group][:count]
    first.keep_only([slurm_name(node.address) for node in chosen])
    return chosen


def _take_nodes(cluster: LiveCluster, leaving: Sequence[ClusterNode], first: JobsFirst) -> None:
    """Let these nodes become empty, and delete them. Raises ClusterError where AWS refuses one of them."""
    from hyperpod_kit.cluster import nodes
    from hyperpod_kit.cluster.nodes import slurm_name

    names = {node.instance_id: slurm_name(node.address) for node in leaving if node.address}
    vacated = first.vacate(list(names.values()), "update-cluster")
    try:
        done, refused = nodes.delete(cluster.sagemaker, cluster.name, leaving)
    except BaseException:
        first.release(vacated)
        raise
    if done:
        say(f"being deleted: {', '.join(done)}")
    if refused:
        first.release(vacated, [names[entry["NodeId"]] for entry in refused if entry["NodeId"] in names])
        refusals = "; ".join(f"{entry['NodeId']}: {entry['ErrorCode']}: {entry['Message']}" for entry in refused)
        raise ClusterError(
            f"AWS does not delete {len(refused)} of {len(leaving)} nodes: {refusals}",
            hint=f"hyperpod-kit wait --cluster {cluster.name}, then again",
        )


def _replacements(groups: Sequence[str], controller: str) -> str:
    """Say how existing nodes come to a change that only new ones get."""
    ways = []
    if set(groups) - {controller}:
        ways.append("hyperpod-kit replace-node for the nodes that are to have it")
    if controller in groups:
        ways.append(f"{controller} cannot be replaced: run the new bundle's entry script there by hand")
    return "; ".join(ways)


def show_changes(update_plan: Update) -> None:
    """A row a change."""
    from rich.table import Table

    from hyperpod_kit.cluster.update import format_value

    if not update_plan.changes:
        return
    grid = Table()
    for column in ("where", "what", "now", "wanted", "how"):
        grid.add_column(column, overflow="fold")
    for change in update_plan.changes:
        loss = ""
        if change.destroys:
            loss = f"{change.destroys} nodes go"
        note = "; ".join(filter(None, (change.note, loss)))
        note_text = ""
        if note:
            note_text = ": "
        grid.add_row(
            *map(
                cell,
                (
                    change.where,
                    change.field,
                    format_value(change.before),
                    format_value(change.after),
                    f"{change.how}{note_text}{note}",
                ),
            )
        )
    console().print(grid)
