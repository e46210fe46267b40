"""operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.terminal.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_table, print_text, print_to_stderr, table_cell
from hyperpod_kit.cluster.times import format_utc
from hyperpod_kit.command_line.tables import TextTable
from hyperpod_kit.untrusted.terminal import LONGEST_LINE
from hyperpod_kit.untrusted.text import clean_one_line, counted

STATUSES = ("InProgress", "Superseded", "Done")
KINDS = ("Scaling", "DeepHealthCheck")


@click.command("operations")
@cluster_options
@click.option("--status", type=click.Choice(STATUSES), help="Only those that stand so.")
@click.option("--type", "kind", type=click.Choice(KINDS), help="Only those of one kind.")
@click.option("--id", "operation_id", metavar="ID", help="One operation, group by group.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(0), help="The newest so many; 0 for all.")
@json_option
def operations(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    status: Optional[str],
    kind: Optional[str],
    operation_id: Optional[str],
    limit: int,
    as_json: bool,
) -> None:
    """Scalings and deep health checks of the cluster, the newest first.

    A scaling that another one has overtaken is Superseded. What AWS does with the software of nodes is in
    describe-cluster.

    \b
    Examples:
      hyperpod-kit operations --status InProgress
      hyperpod-kit operations --type DeepHealthCheck --json
      hyperpod-kit operations --id 0b7a3c1e-5d4f-4a6b-8c9d-0e1f2a3b4c5d
    """
    from hyperpod_kit.aws.sagemaker import SageMaker

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    if operation_id is not None:
        operation = sagemaker.describe_operation(chosen.name, operation_id)
        if as_json:
            print_json("operations", operation)
        else:
            for line in describe_operation(operation):
                print_text(clean_one_line(line, LONGEST_LINE))
        return
    newest_operations = sagemaker.list_operations(chosen.name, status=status, kind=kind, newest=limit or None)
    if as_json:
        print_json("operations", {"cluster": chosen.name, "operations": newest_operations})
        return
    if newest_operations:
        _print_operations(newest_operations)
    print_to_stderr(f"{counted(len(newest_operations), 'operation')} of cluster {chosen.name}")


def describe_operation(operation: Mapping[str, Any]) -> list[str]:
    """Lines about one operation: what it is, then each group."""
    kind, status = operation.get("Type", "?"), operation.get("Status", "?")
    lines = [f"{operation.get('OperationId', '')} {kind} {status}, started {format_utc(operation.get('CreationTime'))}"]
    for group in operation.get("ScalingDetails") or ():
        original, desired = group.get("Original") or {}, group.get("Desired") or {}
        least = ""
        if desired.get("MinCount"):
            least = f", at least {desired['MinCount']}"
        lines.append(
            f"  {group.get('InstanceGroupName', '')} {group.get('Status', '')}: "
            f"{original.get('CurrentCount', '?')} of {original.get('TargetCount', '?')} nodes at the start, "
            f"{desired.get('TargetCount', '?')} requested{least}"
        )
    for group in operation.get("DeepHealthCheckDetails") or ():
        nodes = ", ".join(group.get("InstanceIds") or ()) or "all nodes"
        lines.append(
            f"  {group.get('InstanceGroupName', '')}: {', '.join(group.get('DeepHealthChecks') or ())} of {nodes}"
        )
    return lines


def _print_operations(newest_operations: Sequence[Mapping[str, Any]]) -> None:
    grid = TextTable(("ID", "TYPE", "STATUS", "STARTED"))
    for operation in newest_operations:
        grid.add_row(
            table_cell(str(operation.get("OperationId", ""))),
            table_cell(str(operation.get("Type", ""))),
            table_cell(str(operation.get("Status", ""))),
            format_utc(operation.get("CreationTime")),
        )
    print_table(grid)
