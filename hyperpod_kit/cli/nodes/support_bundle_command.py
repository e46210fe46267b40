"""support-bundle."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.options import Cluster, cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr, progress_bar
from hyperpod_kit.errors import ConfigError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted.text import counted
from hyperpod_kit.version import version

if TYPE_CHECKING:
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.support.archive import SupportArchive
    from hyperpod_kit.remote.target import SshSettings
    from hyperpod_kit.run import Runner


@click.command("support-bundle")
@cluster_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Archive to write; default: support-CLUSTER-TIME.tar.gz.",
)
@click.option("--overwrite", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--node", "named", multiple=True, metavar="NODE", help="Include this node, named as for diagnose; repeatable."
)
@click.option("--no-nodes", is_flag=True, help="Include no nodes.")
@click.option("--root", "roots", multiple=True, metavar="ROOT", help="Add the jobs of a checkpoint root; repeatable.")
@ssh_options
@json_option
def support_bundle(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    out: Optional[Path],
    overwrite: bool,
    named: tuple[str, ...],
    no_nodes: bool,
    roots: tuple[str, ...],
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Collect what a bug report needs in one archive, without secrets.

    The archive has versions, the effective configuration and its findings, and what AWS reports about the cluster,
    with its events. For up to 32 nodes (--node chooses them, --no-nodes leaves them out) it has the records of health,
    devices, Slurm and set-up, the current mounts, the ends of hyperpod-kit's logs, and versions. --root adds the jobs
    of a checkpoint root. MANIFEST.json lists what is in the archive, what is not, and why.

    Anything that looks like a secret is removed, and AWS account numbers are replaced. Names of hosts, users, buckets
    and paths remain: read the archive before you send it. Nothing is sent anywhere.

    The exit code is 0 when the archive is complete, 1 when a node or a root is missing, and 3 when AWS did not answer.
    The archive is written in each case, with mode 0600.

    \b
    Examples:
      hyperpod-kit support-bundle
      hyperpod-kit support-bundle --node worker-group/1 --out fault.tar.gz
      hyperpod-kit support-bundle --no-nodes --root /fsx/runs/llama
    """
    from hyperpod_kit.remote.support import collecting
    from hyperpod_kit.remote.support.archive import SupportArchive

    chosen = _resolve_despite_errors(config, cluster, region)
    made_at = time.time()
    path = out or Path(f"support-{chosen.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(made_at))}.tar.gz")
    archive = SupportArchive(chosen.name, made_at)
    archive.require_free(path, overwrite=overwrite)
    live = make_live_cluster(chosen)
    # First: from its answer the number of the account is known, wherever else it stands.
    answered = collecting.add_aws(archive, live)
    collecting.add_versions(archive, version())
    if config.exists():
        collecting.add_configuration(archive, config)
    missing = False
    with ExitStack() as stack:
        runner = None
        if no_nodes:
            archive.leave_out("nodes", "--no-nodes")
        elif answered:
            missing, runner = _add_nodes(archive, live, named, ssh, stack)
        for number, root in enumerate(roots, 1):
            before = len(archive.members)
            collecting.add_job_records(archive, number, root, runner)
            missing = missing or len(archive.members) == before
    collecting.add_what_is_always_left_out(archive)
    size = archive.write(path, overwrite=overwrite)
    _print_archive(archive, path, size, as_json)
    if not answered:
        return ExitCode.ABSENT
    if missing:
        return ExitCode.PROBLEM
    return ExitCode.OK


def _resolve_despite_errors(config: Path, cluster: Optional[str], region: Optional[str]) -> Cluster:
    """Return the cluster; of a configuration with errors what its text names. Raises Absent, ConfigError."""
    try:
        return resolve_cluster(config, cluster, region)
    except ConfigError:
        from hyperpod_kit.config.reading.document import read_document
        from hyperpod_kit.config.settings.patterns import CLUSTER_NAME

        kit = read_document(config).values.get("hyperpod_kit")
        written = kit.get("cluster") if isinstance(kit, dict) else None
        if not isinstance(written, dict) or not re.fullmatch(CLUSTER_NAME, str(written.get("name"))):
            raise
        print_to_stderr(f"{config} has errors; only the cluster's name and region are used: {written['name']}")
        return Cluster(str(written["name"]), region or str(written.get("region") or "") or None, None)


def _add_nodes(
    archive: SupportArchive, live: LiveCluster, named: tuple[str, ...], ssh: SshSettings, stack: ExitStack
) -> tuple[bool, Optional[Runner]]:
    """Add the nodes; return whether one of them is missing, and a Runner on one that answered, open with `stack`."""
    from hyperpod_kit.remote.diagnosis.cluster_diagnosis import select_targets
    from hyperpod_kit.remote.support import collecting
    from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector

    targets = select_targets(live, named)
    chosen = targets
    if not named:
        chosen = collecting.choose_nodes(targets)
    if len(chosen) < len(targets):
        archive.leave_out(counted(len(targets) - len(chosen), "more node"), "not queried: select nodes with --node")
    connect = stack.enter_context(open_ssh_or_ssm_connector(live, ssh, chosen, print_to_stderr))
    with progress_bar(f"querying {counted(len(chosen), 'node')}", len(chosen)) as advance:
        silent = collecting.add_nodes(
            archive, chosen, connect, timeout=ssh.command_timeout, progress=lambda files: advance(1)
        )
    answering = [target for target in chosen if target not in silent]
    runner = None
    if answering:
        runner = connect(answering[0])
    return bool(silent), runner


def _print_archive(archive: SupportArchive, path: Path, size: int, as_json: bool) -> None:
    manifest = archive.manifest()
    if as_json:
        print_json("support-bundle", {"path": str(path), "bytes": size, "manifest": manifest})
        return
    for member in archive.members:
        cut = ""
        if member.cut:
            cut = ", truncated"
        print_text(f"{member.name}  {len(member.data)} bytes{cut}  ({member.source})")
    for left_out in archive.left_out:
        print_text(f"not included: {left_out.what}: {left_out.reason}")
    taken = ", ".join(f"{count} x {what}" for what, count in manifest["removed"].items())
    print_text(f"removed: {taken or 'nothing, no text looked like a secret'}")
    print_to_stderr(f"{path} written, {size} bytes, readable only by you; nothing was sent")
    print_to_stderr("it contains names of hosts, users, buckets and paths: review it before you send it")
