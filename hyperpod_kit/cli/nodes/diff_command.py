"""diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional

import click

from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.options import Cluster, config_argument, json_option
from hyperpod_kit.cli.terminal.output import print_json, print_table, print_text, print_to_stderr, progress_bar
from hyperpod_kit.errors import Absent, AwsError, HyperpodKitError, Unreachable, UsageError
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.render import Bundle
    from hyperpod_kit.cli.views.diff_rows import DiffRow
    from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.target import SshSettings


@click.command()
@config_argument
@click.option("--nodes/--no-nodes", default=True, show_default=True, help="Query every node.")
@ssh_options
@json_option
def diff(config: Path, nodes: bool, ssh: SshSettings, as_json: bool) -> int:
    """Compare the bundle of the configuration with S3, with the cluster's groups and with the nodes.

    S3: every byte of the uploaded bundle. Groups: the bundle that a node created now would get. Nodes: the bundle
    recorded at their last creation, whether the creation succeeded, and whether the installed files are unchanged.

    The exit code is 0 when everything is the same, 1 when something differs, and 3 when nothing differs but something
    did not answer.

    \b
    Examples:
      hyperpod-kit diff
      hyperpod-kit diff --json
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.compare import compare_digests
    from hyperpod_kit.bundle.render import render
    from hyperpod_kit.bundle.stored import THREADS
    from hyperpod_kit.cli.views import diff_rows
    from hyperpod_kit.config.load import load

    settings = load(config)
    if not settings.entry_script:
        raise UsageError("in ami_only mode no lifecycle script runs, so there is no bundle to compare")
    bundle = render(settings)
    bucket = Bucket(bundle.bucket, settings.cluster.region, connections=THREADS)
    rows = [_compare_with_s3(bundle, bucket)]
    cluster = make_live_cluster(Cluster(settings.cluster.name, settings.cluster.region, settings))
    groups, groups_error = _fetch_instance_groups_and_error(cluster)
    rows += [diff_rows.instance_group_row(bundle, group) for group in groups]
    if groups_error:
        rows += [diff_rows.unanswered_row("cluster", cluster.name, groups_error)]
    node_bundles: list[NodeBundle] = []
    if groups and nodes:
        try:
            node_bundles = _query_installed_bundles(cluster, ssh)
        except (Absent, AwsError, Unreachable, UsageError) as err:
            # What is known of S3 and the groups is worth saying also where no node can be asked.
            rows.append(diff_rows.unanswered_row("nodes", cluster.name, err.message))
            print_to_stderr("the nodes were not queried: see --known-hosts and --ssh-key, or use --no-nodes")
        rows += [diff_rows.node_row(bundle, node_bundle) for node_bundle in node_bundles]
    changes = {
        identity: compare_digests(files, diff_rows.bundle_digests(bundle))
        for identity, files in _digests_of_other_bundles(rows, bundle, bucket, node_bundles).items()
    }
    if as_json:
        print_json("diff", diff_rows.to_json(bundle, rows, changes))
    else:
        print_table(diff_rows.build_table(bundle, rows))
        for line in diff_rows.change_lines(changes):
            print_text(line)
    if not groups and not groups_error:
        print_to_stderr(f"there is no cluster {cluster.name} yet")
    print_to_stderr(diff_rows.summary(rows))
    return diff_rows.exit_code_for_differing_or_unanswered(rows)


def _compare_with_s3(bundle: Bundle, bucket: Bucket) -> DiffRow:
    from hyperpod_kit.aws.errors import NOT_FOUND
    from hyperpod_kit.bundle.stored import compare_with_stored
    from hyperpod_kit.cli.views import diff_rows

    try:
        return diff_rows.s3_row(bundle, compare_with_stored(bundle, bucket))
    except Unreachable as err:
        return diff_rows.unanswered_row("s3", bundle.source_s3_uri, err.message)
    except AwsError as err:
        # No bucket is an answer; "you may not look" is none.
        if err.code in NOT_FOUND:
            return diff_rows.s3_row(bundle, None)
        return diff_rows.unanswered_row("s3", bundle.source_s3_uri, err.message)


def _fetch_instance_groups_and_error(cluster: LiveCluster) -> tuple[list[Mapping[str, Any]], str]:
    """Return the cluster's instance groups, none when there is no cluster, and why AWS did not answer, ""
    when it did."""
    from hyperpod_kit.aws.errors import NOT_FOUND

    try:
        return list(cluster.sagemaker.describe_cluster(cluster.name).get("InstanceGroups", [])), ""
    except AwsError as err:
        reason = err.message
        if err.code in NOT_FOUND:
            reason = ""
        return [], reason
    except Unreachable as err:
        return [], err.message


def _query_installed_bundles(cluster: LiveCluster, ssh: SshSettings) -> list[NodeBundle]:
    from hyperpod_kit.remote.diagnosis.installed_bundles import query_bundles
    from hyperpod_kit.remote.transports.transport_choice import open_ssh_or_ssm_connector

    targets = cluster.list_targets()
    with open_ssh_or_ssm_connector(cluster, ssh, targets, print_to_stderr) as connect, progress_bar(
        f"querying {counted(len(targets), 'node')}", len(targets)
    ) as advance:
        return query_bundles(targets, connect, timeout=ssh.command_timeout, progress=lambda node_bundle: advance(1))


def _digests_of_other_bundles(
    rows: list[DiffRow], bundle: Bundle, bucket: Bucket, node_bundles: list[NodeBundle]
) -> dict[str, Mapping[str, str]]:
    """Bundle id -> its list of digests, for every other bundle that was seen: from a node that has it, else from S3."""
    from hyperpod_kit.bundle.stored import read_stored_digests

    installed: dict[str, Mapping[str, str]] = {
        node_bundle.current: node_bundle.files for node_bundle in node_bundles if node_bundle.files
    }
    digests: dict[str, Mapping[str, str]] = {}
    parent = bundle.prefix[: -len(bundle.bundle_id) - 1]
    for identity in sorted({row.bundle_id for row in rows} - {bundle.bundle_id, ""}):
        files: Optional[Mapping[str, str]] = installed.get(identity)
        if files is None:
            try:
                files = read_stored_digests(bucket, f"{parent}{identity}/")
            except HyperpodKitError:
                files = None  # the row says already that it is another bundle
        if files is not None:
            digests[identity] = files
    return digests
