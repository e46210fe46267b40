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
from hyperpod_kit.untrusted.text import clean_one_line

if TYPE_CHECKING:
    from hyperpod_kit.remote.diagnosis.cluster_diagnosis import ClusterDiagnosis
    from hyperpod_kit.remote.target import SshSettings


@click.command("diagnose")
@cluster_and_nodes_options
@click.option("--log", "with_log", is_flag=True, help="Print the last lines of each node's log too.")
@click.option("--actions", is_flag=True, help="Instead: what was done with root's rights, to whom, and why.")
@click.option(
    "--since",
    metavar="WHEN",
    callback=parse_since_option,
    help="Of --actions: 30m, 2h, 3d ago, or a moment; default: a day ago.",
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
    """Why the cluster or a node is not well: node, step, cause, remedy.

    NODE is an instance id, an address, a host name as Slurm shows it, or GROUP/INDEX; all nodes without one. CONFIG
    ends in .json, .yaml or .yml. Asks AWS for its messages and events, and each node for its own record of its
    creation, its log and its mounts: over ssh, or by SSM sessions where ssh is closed. Of a node that does not answer,
    or failed and is gone, the log is read from CloudWatch; where no way leads to any node, so is what they have sent of
    their mounts.

    --actions lists, from the nodes' journals, what the kit did with root's rights to what is another's: requeued,
    drained, pruned, flushed, unmounted, restarted; on what, of whom, who asked and why. Only records of root's own
    programs count, so no user can forge one.

    Exit code 0 when nothing is wrong, 1 when something is, 3 when AWS does not answer.

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
    ) as connect, progress_bar(f"asking {count} nodes", count) as advance:
        diagnosis = case.diagnose(connect, ssh.command_timeout, lambda done: advance(1))
    if as_json:
        print_json("diagnose", diagnosis.to_dict())
    else:
        _print_diagnosis(diagnosis, with_log)
    if diagnosis.healthy:
        return 0
    return 1


def _print_diagnosis(diagnosis: ClusterDiagnosis, with_log: bool) -> None:
    from hyperpod_kit.remote.diagnosis.diagnose import describe_diagnosis
    from hyperpod_kit.remote.diagnosis.known_issues import recognise

    if diagnosis.failure:
        print_text(indent_continuation_lines(f"cluster {diagnosis.name} is {diagnosis.status}: {diagnosis.failure}"))
        for recognised in recognise(diagnosis.failure):
            print_text(f"  {recognised.cause.code}: {recognised.cause.meaning}\n  do: {recognised.cause.remedy}")
    for few in diagnosis.few:
        print_text(f"{few.group}: {few.desired} nodes wanted, {few.listed} listed by AWS, cluster {diagnosis.status}")
    if diagnosis.few:
        print_text("  do: hyperpod-kit events, and hyperpod-kit wait: it says what comes")
    for node in diagnosis.nodes:
        for line in describe_diagnosis(node):
            print_text(line)
        if with_log:
            for line in node.log:
                print_text(f"    {clean_one_line(line, LONGEST_LINE)}")
    sick = sum(not node.healthy for node in diagnosis.nodes)
    sent_count = sum(node.sent_at > 0 for node in diagnosis.nodes)
    sent = f" ({sent_count} of them by what they have sent to CloudWatch)" if sent_count else ""
    missing = sum(shortage.desired - shortage.listed for shortage in diagnosis.few)
    state_text = "nothing is wrong with them"
    if sick or missing:
        state_text = f"{sick} not well"
    missing_text = f", {missing} missing" if missing else ""
    print_to_stderr(f"{len(diagnosis.nodes)} nodes: {state_text}{missing_text}{sent}")
