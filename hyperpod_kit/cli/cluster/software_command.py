"""update-software."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.cluster.jobs_first import JobsFirst, drain_options
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster
from hyperpod_kit.cli.cluster.waiting import interval_option, timeout_option, wait_until_ready
from hyperpod_kit.cli.terminal.confirm import require_confirmation
from hyperpod_kit.cli.terminal.options import Cluster, cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_table, print_to_stderr, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import ClusterError
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.cluster.software import NodeSoftware


@click.command("update-software")
@cluster_options
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Only this instance group; repeatable.")
@click.option("--batch", metavar="SIZE", help="Nodes to update at a time, `2` or `10%`; default: all.")
@click.option("--pause", default=0, type=click.IntRange(0, 3600), help="Seconds between two batches.")
@click.option("--image", metavar="AMI", help="Image to use instead of HyperPod's newest: `ami-…` or `default`.")
@click.option("--forget-jobs", is_flag=True, help="Continue although Slurm's state is on the controller's own disk.")
@click.option("--dry-run", is_flag=True, help="Show the nodes' versions and the request, and send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@drain_options
@click.option("--wait", "then_wait", is_flag=True, help="Return when every node is updated and running.")
@timeout_option
@interval_option
@json_option
def update_software(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    groups: tuple[str, ...],
    batch: Optional[str],
    pause: int,
    image: Optional[str],
    forget_jobs: bool,
    dry_run: bool,
    yes: bool,
    first: JobsFirst,
    then_wait: bool,
    timeout: float,
    interval: float,
    as_json: bool,
) -> int:
    """Update the AMI of the nodes. They keep their addresses, get new root volumes, and are set up again by the
    bundle.

    Processes on a node end when the node is updated; a job with --auto-resume=1 continues elsewhere, or on the same
    node afterwards. Before it calls AWS, the command checks that the lifecycle script of the nodes is still in its
    bucket, and that Slurm's state is on shared storage: with the state on the controller's own disk, all jobs would be
    lost.

    The jobs on these nodes are listed first. --when-idle and --drain wait until none of the nodes has a job, with
    --batch too: use --group to update part of a cluster. They imply --wait, and let the nodes accept jobs again after
    the update. When --drain-timeout has passed, nothing is sent, the nodes accept jobs again, and the exit code is 3.

    With --wait the exit code is 1 when AWS gives up the update; the batches before that have the new AMI.

    \b
    Examples:
      hyperpod-kit update-software --dry-run
      hyperpod-kit update-software --group worker-group --batch 10% --pause 300 --wait
    """
    from hyperpod_kit.cluster import software
    from hyperpod_kit.cluster.command_arguments import cluster_arguments
    from hyperpod_kit.cluster.nodes import list_nodes, slurm_node_name

    speed = software.parse_rollout(batch, pause)
    chosen = resolve_cluster(config, cluster, region)
    cluster_to_ask = make_live_cluster(chosen)
    sagemaker = cluster_to_ask.sagemaker
    live = sagemaker.describe_cluster(chosen.name)
    meant = software.select_groups(live, groups)
    nodes = [node for node in software.list_node_software(sagemaker.list_nodes(chosen.name)) if node.group in meant]
    update_request = software.software_update_request(chosen.name, meant, speed, image)
    updated = {node.instance_id for node in nodes}
    every = list_nodes(sagemaker, chosen.name)
    names = [slurm_node_name(node.address) for node in every if node.instance_id in updated and node.address]
    first.load_jobs_on_nodes(cluster_to_ask, names)
    if as_json:
        listed = [dataclass_to_json(node) for node in nodes]
        print_json(
            "update-software", {"cluster": chosen.name, "nodes": listed, "request": update_request, **first.to_dict()}
        )
    else:
        _print_node_software(chosen.name, nodes)
    first.print_jobs()
    if dry_run:
        return 0
    software.require_in_service(live)
    _require_slurm_state_survives_update(chosen, meant, forget_jobs)
    _require_lifecycle_scripts_in_s3(software.groups_by_lifecycle_script(live, meant), chosen.region)
    require_confirmation(
        f"{first.confirmation_question_prefix()}Swap the root volumes of {counted(len(nodes), 'node')} "
        f"({', '.join(meant)})? Whatever "
        "runs there ends, and everything on the nodes' own disks is lost.",
        yes=yes,
    )
    vacated = first.vacate_if_requested(names, "update-software")
    try:
        sagemaker.update_software(update_request)
    except BaseException:
        first.undrain_nodes(vacated)
        raise
    print_to_stderr(f"the software of {counted(len(nodes), 'node')} of cluster {chosen.name} is being updated")
    if not (then_wait or first.is_requested):
        print_to_stderr(f"next: hyperpod-kit wait {cluster_arguments(chosen.name, chosen.region)}")
        return 0

    def lacking() -> Sequence[str]:
        late = software.instances_not_updated(nodes, software.list_node_software(sagemaker.list_nodes(chosen.name)))
        if late:
            return [f"{len(late)} of {len(nodes)} nodes not updated yet, first {late[0]}"]
        return []

    stale = str(live.get("FailureMessage", ""))
    wait_until_ready(
        sagemaker, chosen.name, timeout=timeout, interval=interval, stale_failure=stale, list_missing=lacking
    )
    first.wait_for_restart_and_undrain(cluster_to_ask, vacated, timeout)
    print_to_stderr(f"cluster {chosen.name} is ready; next: hyperpod-kit validate-mounts")
    return 0


def _require_slurm_state_survives_update(chosen: Cluster, groups: Sequence[str], forget_jobs: bool) -> None:
    """Raise ClusterError where slurmctld's state would go with the controller's root volume, or that is not known."""
    settings = chosen.settings
    if forget_jobs or (settings is not None and settings.parameters.controller_group not in groups):
        return
    if settings is None:
        raise ClusterError(
            "without the configuration, it is unknown which group is the controller's and whether Slurm's state "
            "outlives its root volume",
            hint="specify the configuration file, or use --forget-jobs if every job may be lost",
        )
    if not settings.slurm_state_mount_name:
        raise ClusterError(
            f"Slurm's state is on the own disk of {settings.parameters.controller_group}: with a fresh root volume "
            "every job and queue is lost, and job numbers start at 1 again",
            hint="use --group for the other groups, keep the state on FSx or EFS (`hyperpod_kit.slurm.state`), or "
            "use --forget-jobs",
        )


def _require_lifecycle_scripts_in_s3(groups_by_script_uri: Mapping[str, Sequence[str]], region: Optional[str]) -> None:
    """Raise ClusterError for a lifecycle script that nodes would not find: they would come back without anything."""
    from hyperpod_kit.aws.s3 import Bucket

    for uri, groups in groups_by_script_uri.items():
        bucket, _, key = uri[len("s3://") :].partition("/")
        if "" not in Bucket(bucket, region).sizes_by_relative_key(key):
            raise ClusterError(
                f"{uri} does not exist: nodes of {', '.join(groups)} would restart without mounts and hooks",
                hint="run hyperpod-kit upload if it is the bundle of this configuration; otherwise restore it",
            )


def _print_node_software(name: str, nodes: Sequence[NodeSoftware]) -> None:
    columns = (
        "NODE",
        "GROUP",
        Column("VERSION", folds=True),
        Column("STATE", folds=True),
        Column("UPDATED", may_miss=True),
    )
    grid = TextTable(columns, f"software of cluster {name}")
    for node in nodes:
        values = (node.instance_id, node.group, node.version or "-", node.standing or "-", node.updated or "-")
        grid.add_row(*(table_cell(word) for word in values))
    print_table(grid)
