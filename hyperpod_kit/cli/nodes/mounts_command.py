"""validate-mounts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_to_stderr, progress_bar
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import SshSettings


@click.command("validate-mounts")
@cluster_options
@functools.partial(ssh_options, timeout=15.0)
@click.option(
    "--via",
    type=click.Choice(["auto", "ssh", "controller", "ssm", "pull"]),
    default="auto",
    show_default=True,
    help="How to reach the nodes. auto: the first of the following that works. ssh: log in to each. controller: log in "
    "to the controller, which asks the others. ssm: one SSM session each, three per second. pull: read their last "
    "reports from CloudWatch.",
)
@click.option("--controller", metavar="HOST", help="Where to log in to the controller; default: its private address.")
@click.option(
    "--max-age",
    type=click.FloatRange(1),
    help="Seconds after which a report in CloudWatch counts as a failure; default: 660, two missed reports.",
)
@click.option("--per-node", "--nodes", "each", is_flag=True, help="Print one row per node instead of grouping them.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write JUnit XML to FILE too."
)
@click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page to FILE too."
)
@click.option(
    "--watch",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Poll at this interval until Ctrl-C, and show changes.",
)
@json_option
def validate_mounts(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    ssh: SshSettings,
    via: str,
    controller: Optional[str],
    max_age: Optional[float],
    each: bool,
    junit: Optional[Path],
    page: Optional[Path],
    watch: Optional[float],
    as_json: bool,
) -> int:
    """Check every mount on every node, and show what the guard on the node has found about Slurm.

    Each node probes its mounts now, within a deadline. If no node can be reached, the last reports are read from
    CloudWatch. The output says how the nodes were reached. A node that does not answer, or whose report is old, counts
    as a failure. With --json and --watch, each poll prints one line.

    The exit code is 0 when all required mounts of all nodes are healthy and no guard reports a fault of Slurm, 1
    otherwise, and 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit validate-mounts
      hyperpod-kit validate-mounts --cluster ml --ssh-key ~/.ssh/ml --json
      hyperpod-kit validate-mounts --via ssh  # only ssh: fails where ssh is closed
      hyperpod-kit validate-mounts --via controller  # one login, which queries the other nodes
      hyperpod-kit validate-mounts --via pull  # no login: the reports in CloudWatch
      hyperpod-kit validate-mounts --watch 60 --junit mounts.xml
      hyperpod-kit validate-mounts --html fleet.html  # a self-contained page
    """
    from hyperpod_kit.cli.views.fleet_show import Display, print_first_status_then_changes
    from hyperpod_kit.remote.reports.fleet_status import poll_fleet, query_fleet_mount_reports
    from hyperpod_kit.remote.reports.via import open_transport

    live = make_live_cluster(resolve_cluster(config, cluster, region))
    max_age = max_age or live.max_report_age_seconds()
    shown = Display(live.name, as_json, each, junit, page)
    with open_transport(via, live, ssh, max_age, controller, print_to_stderr) as transport:
        once = functools.partial(
            query_fleet_mount_reports,
            live,
            transport,
            max_age,
            lambda count: progress_bar(f"querying {counted(count, 'node')} {transport.description}", count),
        )
        if watch is not None:
            print_first_status_then_changes(shown, poll_fleet(once, watch))
        status = once()
    shown.print_and_write_status(status)
    if status.healthy:
        return 0
    return 1
