"""diagnose."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.cluster.events_command import parse_since_option
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.options import cluster_and_nodes_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr, progress_bar
from hyperpod_kit.untrusted.terminal import LONGEST_LINE, indent_continuation_lines
from hyperpod_kit.untrusted.text import clean_one_line, counted

if TYPE_CHECKING:
    from hyperpod_kit.remote.diagnosis.cluster_diagnosis import ClusterDiagnosis
    from hyperpod_kit.remote.target import SshSettings


@click.command("diagnose")
@cluster_and_nodes_options
@click.option("--log", "with_log", is_flag=True, help="Print the last lines of each node's log too.")
@click.option("--actions", is_flag=True, help="List actions done as root instead.")
@click.option(
    "--since",
    metavar="WHEN",
    callback=parse_since_option,
    help="For --actions: 30m, 2h or 3d ago, or a time (UTC); default: 1d.",
)
@ssh_options
@json_option
def diagnose(
    nodes: tuple[str, ...],
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    with_log: bool,
    actions: bool,
    since: Optional[datetime],
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Explain why the cluster or a node is unhealthy: node, step, cause, remedy.

    NODE is an instance id, an address, a host name as in Slurm, or GROUP/INDEX; the default is all nodes. CONFIG ends
    in .json, .yaml or .yml. The command reads AWS's messages and events, and each node's record of its creation, its
    log and its mounts, over ssh or, where ssh is closed, SSM sessions. For a node that does not answer or no longer
    exists, the log is read from CloudWatch; if no node can be reached, so are the reports about mounts.

    --actions lists, from the nodes' journals, what hyperpod-kit did as root to things that belong to others: requeued,
    drained, pruned, flushed, unmounted, restarted; on what, whose, at whose request and why. Only records of root's
    own programs count, so users cannot forge them.

    The exit code is 0 when nothing is wrong, 1 when something is, and 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit diagnose
      hyperpod-kit diagnose worker-group/1 --log
      hyperpod-kit diagnose --actions --since 2h
    """
    from hyperpod_kit.remote.diagnosis import cluster_diagnosis
    from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector

    live = make_live_cluster(resolve_cluster(config, cluster, region))
    if actions:
        from hyperpod_kit.cli.views.actions_show import query_and_print_root_actions

        targets = cluster_diagnosis.select_targets(live, nodes)
        with open_ssh_or_ssm_connector(live, ssh, targets, print_to_stderr) as connect:
            return query_and_print_root_actions(targets, connect, since, timeout=ssh.command_timeout, as_json=as_json)
    case = cluster_diagnosis.fetch_failures_and_nodes_to_diagnose(live, nodes, print_to_stderr)
    count = len(case.targets)
    with open_ssh_or_ssm_connector(
        live, ssh, [target for target, _ in case.targets], print_to_stderr
    ) as connect, progress_bar(f"querying {counted(count, 'node')}", count) as advance:
        diagnosis = case.diagnose(connect, ssh.command_timeout, lambda done: advance(1))
    if as_json:
        print_json("diagnose", diagnosis.to_dict())
    else:
        _print_diagnosis(diagnosis, with_log)
    if diagnosis.healthy:
        return 0
    return 1


def _print_group_activities(diagnosis: ClusterDiagnosis) -> None:
    for name, activity in diagnosis.activities.items():
        for line in activity.lines():
            print_text(clean_one_line(f"{name}: {line}", LONGEST_LINE))


def _print_diagnosis(diagnosis: ClusterDiagnosis, with_log: bool) -> None:
    from hyperpod_kit.remote.diagnosis.diagnose import describe_diagnosis
    from hyperpod_kit.remote.diagnosis.known_issues import recognise

    if diagnosis.failure:
        print_text(indent_continuation_lines(f"cluster {diagnosis.name} is {diagnosis.status}: {diagnosis.failure}"))
        for recognised in recognise(diagnosis.failure):
            print_text(f"  {recognised.cause.code}: {recognised.cause.meaning}\n  do: {recognised.cause.remedy}")
    for few in diagnosis.few:
        print_text(
            f"{few.group}: {counted(few.desired, 'node')} requested, {few.listed} listed by AWS, "
            f"cluster {diagnosis.status}"
        )
    if diagnosis.few:
        print_text("  do: run hyperpod-kit events for the reason, and hyperpod-kit wait to follow the progress")
    _print_group_activities(diagnosis)
    for node in diagnosis.nodes:
        for line in describe_diagnosis(node):
            print_text(line)
        if with_log:
            for line in node.log:
                print_text(f"    {clean_one_line(line, LONGEST_LINE)}")
    sick = sum(not node.healthy for node in diagnosis.nodes)
    sent_count = sum(node.sent_at > 0 for node in diagnosis.nodes)
    sent = f" ({sent_count} of them by reports in CloudWatch)" if sent_count else ""
    missing = sum(shortage.desired - shortage.listed for shortage in diagnosis.few)
    state_text = "no problems found"
    if sick or missing:
        state_text = f"{sick} unhealthy"
    missing_text = f", {missing} missing" if missing else ""
    print_to_stderr(f"{counted(len(diagnosis.nodes), 'node')}: {state_text}{missing_text}{sent}")
