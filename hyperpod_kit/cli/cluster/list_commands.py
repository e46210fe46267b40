"""list-clusters and list-cluster-nodes."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Sequence

import click

from hyperpod_kit.cli.terminal.options import cluster_options, json_option, region_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import (
    print_json,
    print_json_line,
    print_table,
    print_text,
    print_to_stderr,
    table_cell,
)
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import Unreachable, UsageError
from hyperpod_kit.untrusted.text import clean_one_line, counted

if TYPE_CHECKING:
    from hyperpod_kit.cluster.nodes import ClusterNode

LONGEST_MESSAGE = 100
"""Characters of AWS's message in a table: it can hold the end of a log, which --json and `diagnose` show whole."""
_STYLES = {"Running": "green", "InService": "green", "Failure": "bold red", "Failed": "bold red"}


@click.command("list-clusters")
@region_option
@json_option
def list_clusters(region: Optional[str], as_json: bool) -> None:
    """List the HyperPod clusters of the account in one region.

    \b
    Examples:
      hyperpod-kit list-clusters
      hyperpod-kit list-clusters --region us-west-2 --json
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.clusters import fetch_clusters

    sagemaker = SageMaker(region)
    clusters = fetch_clusters(sagemaker)
    if as_json:
        print_json("list-clusters", {"region": sagemaker.region, "clusters": [asdict(cluster) for cluster in clusters]})
        return
    grid = TextTable(("CLUSTER", "STATUS", "CREATED", Column("ARN", folds=True)), f"clusters in {sagemaker.region}")
    for cluster in clusters:
        grid.add_row(
            table_cell(cluster.name),
            table_cell(cluster.status, _STYLES.get(cluster.status, "yellow")),
            table_cell(cluster.created),
            table_cell(cluster.arn),
        )
    if clusters:
        print_table(grid)
    print_to_stderr(f"{counted(len(clusters), 'cluster')} in {sagemaker.region}")


@click.command("list-cluster-nodes")
@cluster_options
@click.option("--group", "groups", metavar="NAME", multiple=True, help="Only this instance group; repeatable.")
@click.option(
    "--state", "states", metavar="STATE", multiple=True, help="Only nodes in this state, such as Failure; repeatable."
)
@click.option(
    "--watch",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Poll at this interval until Ctrl-C, and show changes.",
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
    """List the nodes with their addresses and states. With --json and --watch, each poll prints one line.

    \b
    Examples:
      hyperpod-kit list-cluster-nodes
      hyperpod-kit list-cluster-nodes --cluster ml --json
      hyperpod-kit list-cluster-nodes --group workers --state Failure --state Pending
      hyperpod-kit list-cluster-nodes --watch 10
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.nodes import describe_node_changes, list_nodes

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
        (print_json if watch is None else print_json_line)("list-cluster-nodes", _nodes_to_json(chosen.name, nodes))
    else:
        _print_nodes(chosen.name, nodes)
        count = counted(len(nodes), "node")
        if groups or requested_states:
            count = f"{len(nodes)} of {len(every)} nodes"
        print_to_stderr(f"{count}, {sum(1 for node in nodes if node.status == 'Running')} running")
    while watch is not None:
        time.sleep(watch)
        try:
            nodes, before = select(list_nodes(sagemaker, chosen.name)), nodes
        except Unreachable as err:
            print_to_stderr(f"{err.message}; retrying in {watch:g} s")
            continue
        if as_json:
            print_json_line("list-cluster-nodes", _nodes_to_json(chosen.name, nodes))
        else:
            _print_timestamped_lines(describe_node_changes(before, nodes))


def _nodes_to_json(name: str, nodes: Sequence[ClusterNode]) -> dict[str, Any]:
    return {"cluster": name, "nodes": [asdict(node) for node in nodes]}


def _print_timestamped_lines(lines: Sequence[str]) -> None:
    from hyperpod_kit.cluster.times import format_utc

    at = format_utc(datetime.now(timezone.utc))
    for line in lines:
        print_text(f"{at} {line}")


def _print_nodes(name: str, nodes: Sequence[ClusterNode]) -> None:
    columns: list[Column | str] = [
        "NODE",
        "GROUP",
        "ADDRESS",
        Column("TYPE", may_miss=True),
        "STATE",
        Column("LAUNCHED", may_miss=True),
    ]
    has_messages = any(node.message for node in nodes)
    if has_messages:
        columns.append(Column("MESSAGE", folds=True))
    grid = TextTable(columns, f"nodes of cluster {name}")
    for node in nodes:
        cells = [
            table_cell(node.instance_id),
            table_cell(node.group),
            table_cell(node.address or "-"),
            table_cell(node.instance_type),
            table_cell(node.status, _STYLES.get(node.status, "yellow")),
            table_cell(node.launched),
        ]
        if has_messages:
            cells.append(table_cell(clean_one_line(node.message, LONGEST_MESSAGE) or "-"))
        grid.add_row(*cells)
    print_table(grid)
