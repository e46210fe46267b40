"""create-cluster, wait, describe-cluster, delete-cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional

import click

from hyperpod_kit.cli.cluster.jobs_first import JobsFirst, drain_options
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster
from hyperpod_kit.cli.cluster.waiting import interval_option, timeout_option, wait_until_deleted, wait_until_ready
from hyperpod_kit.cli.terminal.confirm import require_confirmation
from hyperpod_kit.cli.terminal.options import cluster_options, config_argument, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import (
    print_document,
    print_json,
    print_table,
    print_text,
    print_to_stderr,
    table_cell,
)
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.untrusted.terminal import LONGEST_LINE, indent_continuation_lines
from hyperpod_kit.untrusted.text import clean_one_line, counted

if TYPE_CHECKING:
    from hyperpod_kit.cluster.state import ClusterState


@click.command("create-cluster")
@config_argument
@click.option("--wait", "then_wait", is_flag=True, help="Return when every node is running.")
@click.option("--dry-run", is_flag=True, help="Check everything offline and send nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: the result, or with --dry-run the request for aws --cli-input-json.",
)
@timeout_option
@interval_option
def create_cluster(
    config: Path, then_wait: bool, dry_run: bool, as_json: bool, timeout: float, interval: float
) -> None:
    """Create the cluster.

    The request is validated against the installed botocore first, and the bundle must have been uploaded. The output
    of --dry-run --json is the input of `aws sagemaker create-cluster --cli-input-json`. The command succeeds if the
    cluster exists and matches the configuration, so it can be repeated.

    \b
    Examples:
      hyperpod-kit create-cluster --wait
      hyperpod-kit create-cluster --dry-run --json > request.json  # the request
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster import create
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.render_bundle_and_check_request(settings)
    if dry_run:
        if as_json:
            print_document(planned.request)
        else:
            for group in planned.request["InstanceGroups"]:
                types = group.get("InstanceRequirements", {}).get("InstanceTypes") or [group["InstanceType"]]
                print_to_stderr(f"{group['InstanceGroupName']}: {group['InstanceCount']} x {' or '.join(types)}")
            print_to_stderr(
                f"the request for cluster {settings.cluster.name} is valid; nothing was sent (--json shows it)"
            )
        return
    sagemaker = SageMaker(settings.cluster.region)
    made = create.create_cluster_unless_same_exists(settings, planned, sagemaker)
    name = settings.cluster.name
    bundle = None
    if planned.bundle:
        bundle = planned.bundle.bundle_id
    what = "is being created"
    if made.existed:
        what = f"exists already and matches {config}"
    bundle_text = ""
    if bundle:
        bundle_text = f" with bundle {bundle}"
    print_to_stderr(f"cluster {name} {what}: {made.arn}" + bundle_text)
    if then_wait:
        desired_counts = {
            group["InstanceGroupName"]: group["InstanceCount"] for group in planned.request["InstanceGroups"]
        }
        wait_until_ready(sagemaker, name, timeout=timeout, interval=interval, desired=desired_counts)
        print_to_stderr(f"cluster {name} is ready; next: hyperpod-kit validate-mounts")
    else:
        print_to_stderr(f"next: hyperpod-kit wait {config}")
    if as_json:
        print_json(
            "create-cluster",
            {
                "ClusterArn": made.arn,
                "ClusterName": name,
                "bundle_id": bundle,
                "ready": then_wait,
                "existed": made.existed,
            },
        )


@click.command()
@cluster_options
@timeout_option
@interval_option
@json_option
def wait(
    config: Path, cluster: Optional[str], region: Optional[str], timeout: float, interval: float, as_json: bool
) -> None:
    """Wait until every node is running.

    A cluster is ready when it is InService and each group has as many running nodes as requested. With continuous
    provisioning, nodes that fail are reported with AWS's reason and the wait continues, because AWS tries again.

    The exit code is 1 when the cluster fails, and 3 when --timeout has passed or AWS does not answer. The command can
    be stopped and repeated at any time.

    \b
    Examples:
      hyperpod-kit wait
      hyperpod-kit wait --cluster demo --region us-east-1 --timeout 7200
    """
    from hyperpod_kit.aws.sagemaker import SageMaker

    chosen = resolve_cluster(config, cluster, region)
    state = wait_until_ready(SageMaker(chosen.region), chosen.name, timeout=timeout, interval=interval)
    print_to_stderr(f"cluster {chosen.name} is ready")
    if state.failure:
        print_to_stderr(f"AWS still reports a failure of an earlier change: {state.failure}")
    if as_json:
        print_json("wait", state.to_dict())


@click.command("describe-cluster")
@cluster_options
@json_option
def describe_cluster(config: Path, cluster: Optional[str], region: Optional[str], as_json: bool) -> int:
    """Show the status, groups and failures of the cluster. The exit code is 1 when the cluster has failed.

    Below the table, group by group: updates and scalings that run or were undone, the date of the next patch, until
    when a training plan serves, Spot, and how many nodes have which type.

    \b
    Examples:
      hyperpod-kit describe-cluster
      hyperpod-kit describe-cluster --cluster demo --json  # AWS's response
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.group_activity import describe_training_plans
    from hyperpod_kit.cluster.wait import observe_cluster

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    if as_json:
        response = sagemaker.describe_cluster(chosen.name)
        print_json("describe-cluster", response)
        if response["ClusterStatus"] == "Failed":
            return 1
        return 0
    state = observe_cluster(sagemaker, chosen.name)
    _print_cluster_state(state, describe_training_plans(sagemaker, state.plan_arns_by_group))
    if state.status == "Failed":
        return 1
    return 0


def _print_cluster_state(state: ClusterState, plans: Mapping[str, str]) -> None:
    mode = ""
    if state.continuous:
        mode = ", continuous provisioning"
    numbers = [Column(head, is_number=True) for head in ("NODES", "TARGET")]
    grid = TextTable(
        ("GROUP", *numbers, Column("NODE STATES", folds=True)), f"cluster {state.name}: {state.status}{mode}"
    )
    for group in state.groups:
        states = ", ".join(f"{count} {status}" for status, count in sorted(group.nodes.items())) or "-"
        state_text = states
        if group.status in ("Failed", "Degraded"):
            state_text = f"{group.status}: {states}"
        grid.add_row(
            table_cell(group.name),
            str(group.current),
            str(group.target),
            table_cell(state_text),
        )
    print_table(grid)
    for group in state.groups:
        lines = [*group.activity.lines(), *filter(None, [plans.get(group.name, "")])]
        for line in lines:
            print_text(clean_one_line(f"{group.name}: {line}", LONGEST_LINE))
    if state.failure:
        print_text(indent_continuation_lines(f"failure: {state.failure}"))
    for node, message in state.messages:
        print_text(indent_continuation_lines(f"{node}: {message}"))


@click.command("delete-cluster")
@cluster_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@drain_options
@click.option("--wait", "then_wait", is_flag=True, help="Return when the cluster is deleted.")
@timeout_option
@interval_option
@json_option
def delete_cluster(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    yes: bool,
    dry_run: bool,
    first: JobsFirst,
    then_wait: bool,
    timeout: float,
    interval: float,
    as_json: bool,
) -> None:
    """Delete the cluster and its nodes. File systems and buckets are kept.

    The command lists the running jobs and asks for confirmation. --when-idle accepts no new jobs and waits until the
    running ones have ended. --drain also requeues the jobs that Slurm may requeue, so that each of them ends with what
    it has saved; the queue itself is deleted with the cluster. When --drain-timeout has passed, nothing is deleted,
    the nodes accept jobs again, and the exit code is 3.

    The command succeeds if the cluster no longer exists, so it can be repeated.

    \b
    Examples:
      hyperpod-kit delete-cluster --dry-run
      hyperpod-kit delete-cluster --cluster demo --yes --wait
      hyperpod-kit delete-cluster --when-idle --drain-timeout 86400
    """
    from hyperpod_kit.cluster.nodes import slurm_node_name
    from hyperpod_kit.cluster.wait import is_cluster_not_found, observe_cluster
    from hyperpod_kit.errors import AwsError

    chosen = resolve_cluster(config, cluster, region)
    live = make_live_cluster(chosen)
    sagemaker, name = live.sagemaker, chosen.name
    summary = {"cluster": name, "region": sagemaker.region}
    try:
        state = observe_cluster(sagemaker, name)
    except AwsError as err:
        if not is_cluster_not_found(err):
            raise
        print_to_stderr(f"there is no cluster {name} in {sagemaker.region}: nothing to delete")
        if as_json:
            print_json("delete-cluster", {**summary, "status": "gone", "nodes": 0, **first.to_dict()})
        return
    count = sum(sum(group.nodes.values()) for group in state.groups)
    nodes_text = counted(count, "node and everything on its own disks", "nodes and everything on their own disks")
    lost = f"cluster {name} in {sagemaker.region} with its {nodes_text}"
    is_going = state.status == "Deleting"
    names = (
        []
        if is_going
        else [slurm_node_name(node.address) for node in live.list_nodes_not_being_removed() if node.address]
    )
    first.load_jobs_on_nodes(live, names)
    if dry_run:
        print_to_stderr(f"would delete {lost}")
        first.print_jobs()
        if as_json:
            print_json("delete-cluster", {**summary, "status": state.status, "nodes": count, **first.to_dict()})
        return
    if is_going:
        print_to_stderr(f"cluster {name} is already being deleted")
    else:
        first.print_jobs()
        require_confirmation(f"{first.confirmation_question_prefix()}Delete {lost}?", yes=yes)
        vacated = first.vacate_if_requested(names, "delete-cluster")
        try:
            sagemaker.delete_cluster(name)
        except BaseException:
            first.undrain_nodes(vacated)
            raise
        print_to_stderr(f"cluster {name} is being deleted")
    if then_wait:
        wait_until_deleted(sagemaker, name, timeout=timeout, interval=interval)
        print_to_stderr(f"cluster {name} is gone")
    if as_json:
        print_json(
            "delete-cluster",
            {**summary, "status": "gone" if then_wait else "Deleting", "nodes": count, **first.to_dict()},
        )
