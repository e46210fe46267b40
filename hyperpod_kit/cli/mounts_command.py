"""validate-mounts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.ssh_options import open_sagemaker, ssh_options

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import SshSettings


@click.command("validate-mounts")
@cluster_options
@functools.partial(ssh_options, timeout=10.0)
@click.option("--nodes", "each", is_flag=True, help="A row for each node, however many there are.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write JUnit XML to FILE too."
)
@click.option(
    "--watch",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Look again that often until Ctrl-C, and say what has changed.",
)
@json_option
def validate_mounts(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    ssh: SshSettings,
    each: bool,
    junit: Optional[Path],
    watch: Optional[float],
    as_json: bool,
) -> int:
    """Check every mount on every node.

    Each node probes its own mounts now, with a deadline. A node that does not answer counts as a failure. With --json
    and --watch, one line is one whole look.

    Exit code 0 when all required mounts of all nodes are healthy, 1 when not, 3 when AWS does not answer.

    \b
    Examples:
      hyperpod-kit validate-mounts
      hyperpod-kit validate-mounts --cluster ml --ssh-key ~/.ssh/ml --json
      hyperpod-kit validate-mounts --watch 60 --junit mounts.xml
    """
    from hyperpod_kit.cli import mounts_look as looking
    from hyperpod_kit.remote.ssh_access import SshAccess
    from hyperpod_kit.remote.ssh_transport import SshTransport

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = open_sagemaker(chosen)
    shown = looking.Shown(as_json, each, junit)
    with SshAccess(ssh) as access:
        access.load()
        transport = SshTransport(access)
        if watch is not None:
            looking.watch(chosen, sagemaker, transport, 660.0, watch, shown)
        looked = looking.look(chosen, sagemaker, transport, 660.0)
    looking.show(chosen, looked, shown)
    return 0 if looked.healthy else 1
