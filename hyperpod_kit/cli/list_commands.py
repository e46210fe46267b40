"""list-clusters and list-cluster-nodes."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Sequence

import click

from hyperpod_kit.cli.options import cluster_options, json_option, region_option, resolve_cluster
from hyperpod_kit.cli.output import cell, console, data, json_line, out, say
from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.untrusted.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from hyperpod_kit.cluster.nodes import ClusterNode

NARROWEST = 72
"""Columns that a table of nodes needs, with ids and addresses whole."""
LONGEST_MESSAGE = 100
"""Characters of AWS's message in a table: it can hold the end of a log, which --json and `diagnose` show whole."""
_STYLES = {"Running": "green", "InService": "green", "Failure": "bold red", "Failed": "bold red"}


@click.command("list-clusters")
@region_option
@json_option
def list_clusters(region: Optional[str], as_json: bool) -> None:
    """Every HyperPod cluster of the account in one region.

    \b
    Examples:
      hyperpod-kit list-clusters
      hyperpod-kit list-clusters --region us-west-2 --json
    """
    from rich.table import Table

    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.clusters import fetch_clusters

    sagemaker = SageMaker(region)
    clusters = fetch_clusters(sagemaker)
    if as_json:
        data({"region": sagemaker.region, "clusters": [asdict(cluster) for cluster in clusters]})
        return
    grid = Table(title=f"clusters in {sagemaker.region}", title_justify="left")
    for column in ("cluster", "status", "created", "arn"):
        grid.add_column(column, overflow="fold")
    for cluster in clusters:
        grid.add_row(
            cell(cluster.name),
            cell(cluster.status, _STYLES.get(cluster.status, "yellow")),
            cell(cluster.created),
            cell(cluster.arn),
        )
    if clusters:
        console().print(grid)
    say(f"{len(clusters)} clusters in {sagemaker.region}")


@click.command("list-cluster-nodes")
@cluster_options
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Of this instance group; may be repeated.")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, help="In this state, such as Failure; may be repeated."
)
@click.option(
    "--watch",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Look again that often until Ctrl-C, and say what has changed.",
)
@json_option
def list_cluster_nodes(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    groups: tuple[str, ...],
    states: tuple[str, ...],
    watch: Optional[float],
    as_json: bool,
) -> None:
    """Every node with its address and state. With --json and --watch, one line is one whole look.

    \b
    Examples:
      hyperpod-kit list-cluster-nodes
      hyperpod-kit list-cluster-nodes --cluster ml --json
      hyperpod-kit list-cluster-nodes --group workers --state Failure --state Pending
      hyperpod-kit list-cluster-nodes --watch 10
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.nodes import describe_changes, list_nodes

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    requested_states = {state.casefold() for state in states}

    def select(every: Sequence[ClusterNode]) -> list[ClusterNode]:
        return [
            node
            for node in every
            if (not groups or node.group in groups)
            and (not requested_states or node.status.casefold() in requested_states)
        ]

    every = list_nodes(sagemaker, chosen.name)
    for name in sorted(set(groups) - {node.group for node in every}):
        raise UsageError(
            f"cluster {chosen.name} has no node in a group `{name}`: expected one of "
            f"{', '.join(sorted({node.group for node in every})) or 'none'}"
        )
    nodes = select(every)
    if as_json:
        (data if watch is None else json_line)(_listed(chosen.name, nodes))
    else:
        _show(chosen.name, nodes)
        among = ""
        if groups or requested_states:
            among = f" of {len(every)}"
        say(f"{len(nodes)}{among} nodes, {sum(1 for node in nodes if node.status == 'Running')} running")
    while watch is not None:
        time.sleep(watch)
        try:
            nodes, before = select(list_nodes(sagemaker, chosen.name)), nodes
        except Unreachable as err:
            say(f"{err.message}; asking again in {watch:g} s")
            continue
        if as_json:
            json_line(_listed(chosen.name, nodes))
        else:
            _print_changes(describe_changes(before, nodes))


def _listed(name: str, nodes: Sequence[ClusterNode]) -> dict[str, Any]:
    return {"cluster": name, "nodes": [asdict(node) for node in nodes]}


def _print_changes(lines: Sequence[str]) -> None:
    from hyperpod_kit.cluster.times import in_utc

    at = in_utc(datetime.now(timezone.utc))
    for line in lines:
        out(f"{at} {line}")


def _show_narrow(screen: Console, nodes: Sequence[ClusterNode]) -> None:
    """Lines in place of columns, which would be cut: an id that is not whole is none."""
    for node in nodes:
        screen.print(cell(node.instance_id), cell(node.status, _STYLES.get(node.status, "yellow")))
        screen.print(cell(f"  {node.group} {node.address or '-'} {node.instance_type}"))
        if node.message:
            screen.print(cell(f"  {clean(node.message, LONGEST_MESSAGE)}"))


def _show(name: str, nodes: Sequence[ClusterNode]) -> None:
    from rich import box
    from rich.table import Table

    screen = console()
    if screen.width < NARROWEST:
        _show_narrow(screen, nodes)
        return
    shown, shape = ["group", "node", "address", "type", "state"], box.SIMPLE_HEAD
    if screen.width >= 120:
        shown, shape = [*shown, "launched"], box.HEAVY_HEAD
    if any(node.message for node in nodes):
        shown.append("message")
    grid = Table(title=f"nodes of cluster {name}", title_justify="left", box=shape)
    for column in shown:
        grid.add_column(column, overflow="fold", no_wrap=column in ("node", "address", "state"))
    for node in nodes:
        cells = {
            "group": cell(node.group),
            "node": cell(node.instance_id),
            "address": cell(node.address or "-"),
            "type": cell(node.instance_type),
            "state": cell(node.status, _STYLES.get(node.status, "yellow")),
            "launched": cell(node.launched),
            "message": cell(clean(node.message, LONGEST_MESSAGE) or "-"),
        }
        grid.add_row(*(cells[column] for column in shown))
    screen.print(grid)
