"""validate-mounts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.output import bar, console, data, say
from hyperpod_kit.cli.ssh_options import open_sagemaker, ssh_options, targets_of
from hyperpod_kit.errors import ClusterError

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import SshSettings


@click.command("validate-mounts")
@cluster_options
@ssh_options
@json_option
def validate_mounts(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Check every mount on every node.

    Each node probes its own mounts now, with a deadline. A node that does not answer counts as a failure.

    Exit code 0 when all required mounts of all nodes are healthy, 1 when not, 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit validate-mounts
      hyperpod-kit validate-mounts --cluster ml --ssh-key ~/.ssh/ml --json
    """
    import time

    from hyperpod_kit.remote import report
    from hyperpod_kit.remote import validate_mounts as checking
    from hyperpod_kit.remote.ssh import SshRunner, require_usable

    chosen = resolve_cluster(config, cluster, region)
    targets = targets_of(chosen, open_sagemaker(chosen))
    if not targets:
        raise ClusterError(
            f"cluster {chosen.name} has no nodes", hint=f"hyperpod-kit describe-cluster --cluster {chosen.name}"
        )
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
            timeout=ssh.command_timeout,
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
