"""validate-mounts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.options import Cluster, cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.output import bar, console, data, say
from hyperpod_kit.errors import ClusterError

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import Target


@click.command("validate-mounts")
@cluster_options
@click.option("--ssh-user", default="root", show_default=True, envvar="HPK_SSH_USER", show_envvar=True)
@click.option(
    "--ssh-key",
    type=click.Path(path_type=Path),
    envvar="HPK_SSH_KEY",
    show_envvar=True,
    help="Private key; default: the agent and ~/.ssh.",
)
@click.option("--ssh-port", default=22, show_default=True, envvar="HPK_SSH_PORT", show_envvar=True)
@click.option(
    "--known-hosts",
    type=click.Path(path_type=Path),
    envvar="HPK_KNOWN_HOSTS",
    show_envvar=True,
    default=Path("~/.ssh/known_hosts"),
    show_default=True,
    help="Host keys to verify nodes by; no other is accepted.",
)
@click.option(
    "--connect-timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds to log in to a node.",
)
@click.option(
    "--timeout", default=60.0, show_default=True, type=click.FloatRange(1), help="Seconds for a node's own check."
)
@json_option
def validate_mounts(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    ssh_user: str,
    ssh_key: Optional[Path],
    ssh_port: int,
    known_hosts: Path,
    connect_timeout: float,
    timeout: float,
    as_json: bool,
) -> int:
    """Check every mount on every node.

    Each node probes its own mounts now, with a deadline. A node that does not answer counts as a failure.

    Exit code 0 when all required mounts of all nodes are healthy, 1 when not, 3 when AWS does not answer.
    """
    import time

    from hyperpod_kit.remote import report
    from hyperpod_kit.remote import validate_mounts as checking
    from hyperpod_kit.remote.ssh import SshRunner, require_usable
    from hyperpod_kit.remote.target import SshSettings

    ssh = SshSettings(
        ssh_user, known_hosts.expanduser(), ssh_key.expanduser() if ssh_key else None, ssh_port, connect_timeout
    )
    chosen = resolve_cluster(config, cluster, region)
    targets = _targets(chosen)
    require_usable(ssh)
    expected = {}
    if chosen.settings is not None:
        node_config = chosen.settings.node_config()
        expected = {group: node_config.mounts_for(role, group) for group, role in node_config.roles.items()}
    with bar(f"asking {len(targets)} nodes", len(targets)) as advance:
        reports = checking.validate_mounts(
            targets,
            lambda target: SshRunner(target.address, ssh),
            expected=expected,
            timeout=timeout,
            progress=lambda done: advance(1),
        )
    healthy = all(entry.healthy for entry in reports)
    if as_json:
        data(report.to_json(chosen.name, reports, time.time()))
    else:
        screen = console()
        screen.print(report.table(chosen.name, reports, time.time(), screen.width))
    for line in report.problems(reports):
        say(line)
    say(report.summary(reports))
    return 0 if healthy else 1


def _targets(chosen: Cluster) -> list[Target]:
    """The nodes to ask: all but those on their way out. Raises ClusterError when there are none."""
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.nodes import LOOKUPS, list_nodes
    from hyperpod_kit.remote.target import Target

    nodes = list_nodes(SageMaker(chosen.region, connections=LOOKUPS), chosen.name)
    roles = {group.name: group.role for group in chosen.settings.cluster.groups} if chosen.settings else {}
    targets = [
        Target(node.instance_id, node.group, roles.get(node.group, ""), node.address, node.status)
        for node in nodes
        if not node.gone
    ]
    if not targets:
        raise ClusterError(
            f"cluster {chosen.name} has no nodes", hint=f"hyperpod-kit describe-cluster --cluster {chosen.name}"
        )
    return targets
