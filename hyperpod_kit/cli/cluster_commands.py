"""create-cluster, wait, describe-cluster, delete-cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import click

from hyperpod_kit.cli.options import cluster_options, config_argument, json_option, resolve_cluster
from hyperpod_kit.cli.output import console, data, say, watch

timeout_option = click.option(
    "--timeout", default=3600.0, show_default=True, type=click.FloatRange(1), help="Seconds to wait at most."
)
interval_option = click.option(
    "--interval",
    default=10.0,
    type=click.FloatRange(0.2),
    envvar="HPK_POLL_INTERVAL",
    show_default=True,
    show_envvar=True,
    help="Seconds between two polls.",
)


@click.command("create-cluster")
@config_argument
@click.option("--wait", "then_wait", is_flag=True, help="Return when every node runs.")
@click.option("--dry-run", is_flag=True, help="Check everything offline, send nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="With --dry-run: the request, for aws --cli-input-json. Else: the answer."
)
@timeout_option
@interval_option
def create_cluster(
    config: Path, then_wait: bool, dry_run: bool, as_json: bool, timeout: float, interval: float
) -> None:
    """Create the cluster.

    The request is checked against the installed botocore first, and the bundle must be uploaded. The output of
    --dry-run --json is exactly what `aws sagemaker create-cluster --cli-input-json` takes.

    \b
    Examples:
      hyperpod-kit create-cluster --dry-run --json > request.json  # for aws sagemaker create-cluster --cli-input-json
      hyperpod-kit create-cluster --wait --timeout 5400
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster import create
    from hyperpod_kit.cluster.wait import wait_ready
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.plan(settings)
    if dry_run:
        if as_json:
            data(planned.request)
        else:
            for group in planned.request["InstanceGroups"]:
                say(f"{group['InstanceGroupName']}: {group['InstanceCount']} x {group['InstanceType']}")
            say(f"the request for cluster {settings.cluster.name} is right; nothing was sent (--json shows it)")
        return
    sagemaker = SageMaker(settings.cluster.region)
    arn = create.create(settings, planned, sagemaker)
    name = settings.cluster.name
    bundle = planned.bundle.bundle_id if planned.bundle else None
    say(f"cluster {name} is being created: {arn}" + (f" with bundle {bundle}" if bundle else ""))
    if then_wait:
        with watch() as show:
            wait_ready(sagemaker, name, timeout=timeout, interval=interval, progress=lambda state: show(state.line()))
        say(f"cluster {name} is ready; next: hyperpod-kit validate-mounts")
    else:
        say(f"next: hyperpod-kit wait {config}")
    if as_json:
        data({"ClusterArn": arn, "ClusterName": name, "bundle_id": bundle, "ready": then_wait})


@click.command()
@cluster_options
@timeout_option
@interval_option
@json_option
def wait(
    config: Path, cluster: Optional[str], region: Optional[str], timeout: float, interval: float, as_json: bool
) -> None:
    """Wait until every node runs.

    Exit code 1 when the cluster fails, with AWS's reason; 3 when time is up.

    \b
    Examples:
      hyperpod-kit wait
      hyperpod-kit wait --cluster ml --region us-west-2 --timeout 1800
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.wait import wait_ready

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    with watch() as show:
        state = wait_ready(
            sagemaker, chosen.name, timeout=timeout, interval=interval, progress=lambda state: show(state.line())
        )
    say(f"cluster {chosen.name} is ready")
    if as_json:
        data(state.to_dict())


@click.command("describe-cluster")
@cluster_options
@json_option
def describe_cluster(config: Path, cluster: Optional[str], region: Optional[str], as_json: bool) -> int:
    """Status, groups and failures. Exit code 1 when the cluster has failed.

    \b
    Examples:
      hyperpod-kit describe-cluster
      hyperpod-kit describe-cluster --cluster ml --region us-west-2 --json
    """
    from rich.table import Table

    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.wait import observe

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    if as_json:
        answer = sagemaker.describe_cluster(chosen.name)
        data(answer)
        return 1 if answer["ClusterStatus"] == "Failed" else 0
    state = observe(sagemaker, chosen.name)
    grid = Table(title=f"cluster {state.name}: {state.status}", title_justify="left")
    for column in ("group", "nodes", "wanted", "node states"):
        grid.add_column(column, justify="right" if column in ("nodes", "wanted") else "left")
    for group in state.groups:
        grid.add_row(
            group.name,
            str(group.current),
            str(group.target),
            ", ".join(f"{count} {status}" for status, count in sorted(group.nodes.items())) or "-",
        )
    console().print(grid)
    if state.failure:
        click.echo(f"failure: {state.failure}")
    for node, message in state.messages:
        click.echo(f"{node}: {message}")
    return 1 if state.status == "Failed" else 0


@click.command("delete-cluster")
@cluster_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", "then_wait", is_flag=True, help="Return when it is gone.")
@timeout_option
@interval_option
def delete_cluster(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    yes: bool,
    then_wait: bool,
    timeout: float,
    interval: float,
) -> None:
    """Delete the cluster and its nodes. File systems and buckets stay.

    \b
    Examples:
      hyperpod-kit delete-cluster --wait
      hyperpod-kit delete-cluster --cluster ml --region us-west-2 --yes
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.wait import wait_deleted

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    if not yes:
        count = len(sagemaker.list_nodes(chosen.name))
        click.confirm(
            f"Delete cluster {chosen.name} with its {count} nodes and everything on their own disks?",
            abort=True,
            err=True,
        )
    sagemaker.delete_cluster(chosen.name)
    say(f"cluster {chosen.name} is being deleted")
    if then_wait:
        with watch() as show:
            wait_deleted(
                sagemaker, chosen.name, timeout=timeout, interval=interval, progress=lambda state: show(state.line())
            )
        say(f"cluster {chosen.name} is gone")
