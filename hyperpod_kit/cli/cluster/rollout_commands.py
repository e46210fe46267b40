"""rollout: the uploaded bundle to nodes that run, batch by batch, and the way back."""

from __future__ import annotations

import functools
import getpass
import secrets
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence

import click

from hyperpod_kit.cli.cluster.jobs_first import JobsFirst, drain_options
from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.confirm import require_confirmation
from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import Cluster, config_argument, json_option
from hyperpod_kit.cli.terminal.output import print_json, print_table, print_to_stderr, progress_bar
from hyperpod_kit.errors import Absent, ClusterError, UsageError, WaitTimeout
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.render import Bundle
    from hyperpod_kit.cli.views.rollout_show import RolloutReport
    from hyperpod_kit.config.settings.settings import Settings
    from hyperpod_kit.model.mounts.base import Mount
    from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle
    from hyperpod_kit.remote.live_cluster import LiveCluster
    from hyperpod_kit.remote.rollout.node_switch import TargetBundle
    from hyperpod_kit.remote.rollout.record import RolloutRecord, RolloutRecords, RolloutState
    from hyperpod_kit.remote.target import NodeTarget, SshSettings
    from hyperpod_kit.run import Runner

BY = 200
"""Characters of who began a rollout."""


@click.group(cls=SummaryGroup)
def rollout() -> None:
    """Install an uploaded bundle on running nodes, batch by batch, or undo that."""


def rollout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """CONFIG and the options of a command that switches nodes, which gets them as `request: RolloutRequest`."""

    def with_request(
        *,
        config: Path,
        nodes: tuple[str, ...],
        batch: str,
        dry_run: bool,
        yes: bool,
        take_over: bool,
        as_json: bool,
        first: JobsFirst,
        requeue: bool,
        **options: Any,
    ) -> Any:
        if requeue:
            first.ask_jobs_to_save()
        request = RolloutRequest(
            f"rollout {command.__name__}", config, nodes, batch, dry_run, yes, take_over, as_json, first
        )
        return command(request=request, **options)

    wrapped: Callable[..., Any] = functools.wraps(command)(with_request)
    for option in (
        json_option,
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--take-over", is_flag=True, help="Continue a rollout whose machine is gone."),
        click.option("--dry-run", is_flag=True, help="Show the nodes, batches and jobs, and change nothing."),
        click.option(
            "--requeue",
            is_flag=True,
            help="As --drain, but jobs of `job run` save first and requeue themselves.",
        ),
        drain_options,
        click.option(
            "--batch",
            default="10%",
            show_default=True,
            metavar="SIZE",
            help="Nodes to switch at a time, `2` or `10%`; at least one.",
        ),
        click.option("--node", "nodes", multiple=True, metavar="NODE", help="Only this node; repeatable."),
        config_argument,
    ):
        wrapped = option(wrapped)
    return wrapped


@dataclass(frozen=True)
class RolloutRequest:
    """What was asked for on the command line. `command`: its name, such as `rollout start`."""

    command: str
    config: Path
    nodes: tuple[str, ...]
    batch: str
    dry_run: bool
    yes: bool
    take_over: bool
    as_json: bool
    first: JobsFirst


@rollout.command()
@rollout_options
def start(request: RolloutRequest) -> int:
    """Install the bundle of the configuration, which must have been uploaded, on the nodes.

    Compute nodes are first, then login nodes, then controllers one by one. Each node of a batch fetches the bundle
    with its own role, verifies every byte, installs it beside the old one, and applies it; then its mounts are
    checked. Running jobs continue with the bundle that they started with. --when-idle accepts no new jobs on the nodes
    of a batch and waits until the running ones have ended. --requeue makes jobs of `job run` save and requeue
    themselves, and requeues others where Slurm may. --drain requeues all at once.

    A node that fails is switched back to its old bundle, and the rollout stops after its batch with exit code 1.
    Repeat the command to continue: nodes that have the bundle are skipped. NODE as for replace-node.

    Only one rollout can run at a time. If the machine that ran it is gone, --take-over continues from its record.

    \b
    Examples:
      hyperpod-kit rollout start --dry-run
      hyperpod-kit rollout start --batch 2
      hyperpod-kit rollout start --requeue --batch 10% --yes
    """
    return _start(request, resumes=False)


@rollout.command()
@rollout_options
def resume(request: RolloutRequest) -> int:
    """Continue a paused rollout. The options are those of start.

    \b
    Examples:
      hyperpod-kit rollout resume
    """
    return _start(request, resumes=True)


@rollout.command()
@config_argument
def pause(config: Path) -> int:
    """Stop the rollout after the current batch, whoever runs it, and prevent another start.

    \b
    Examples:
      hyperpod-kit rollout pause
    """
    scene = _load(config)
    scene.records.set_pause(True)
    print_to_stderr("no further batch will start; next: hyperpod-kit rollout status, hyperpod-kit rollout resume")
    return 0


@rollout.command()
@rollout_options
def undo(request: RolloutRequest) -> int:
    """Switch nodes back to the bundle that each had before the rollout. The options are those of start.

    Controllers are first. Pause a running rollout before; with --take-over it ends after its batch. The old bundle is
    still on the nodes; where it was removed, it is fetched again.

    \b
    Examples:
      hyperpod-kit rollout undo --dry-run
      hyperpod-kit rollout undo --yes
    """
    from hyperpod_kit.remote.rollout.node_switch import TargetBundle
    from hyperpod_kit.remote.rollout.record import RolloutState

    scene = _load(request.config)
    record = _read_record(scene, request)
    if record is None or not record.previous:
        raise Absent(
            f"no rollout of cluster {scene.cluster.name} has switched a node", hint="hyperpod-kit rollout status"
        )
    previous = record.previous
    targets = [target for target in _targets(scene, request) if target.instance_id in previous]
    bundle_by_target = {
        target: TargetBundle(bundle_id, bundle_id, f"s3://{scene.bucket.name}/{scene.parent}{bundle_id}/")
        for target in targets
        for bundle_id in [previous[target.instance_id]]
    }
    return _roll(scene, request, bundle_by_target, _claimed(record, RolloutState.UNDOING), RolloutState.UNDONE)


@rollout.command()
@config_argument
@ssh_options
@json_option
def status(config: Path, ssh: SshSettings, as_json: bool) -> int:
    """Show the progress of a rollout: its record in S3, and the bundle that each node reports.

    The exit code is 0 when every node has the bundle, 1 when a node has another one, and 3 when all that answer have
    it.

    \b
    Examples:
      hyperpod-kit rollout status
      hyperpod-kit rollout status --json
    """
    from hyperpod_kit.cli.views.rollout_show import RolloutStanding, build_node_table

    scene = _load(config)
    record = scene.records.read()
    bundle_id = scene.bundle.bundle_id
    if record is not None:
        bundle_id = record.bundle_id
    is_paused = scene.records.is_pause_wanted()
    targets = scene.cluster.list_targets()
    with _open_connector(scene, ssh, targets) as connect:
        node_bundles = _query_bundles(targets, connect, ssh)
    standing = RolloutStanding(scene.cluster.name, bundle_id, record, is_paused, tuple(node_bundles))
    if as_json:
        print_json("rollout status", standing.to_dict())
    else:
        print_table(build_node_table(standing))
    print_to_stderr(standing.to_line())
    return standing.exit_code


@dataclass(frozen=True)
class _Scene:
    """The configuration's bundle, its place in S3, the cluster, and the record of its rollouts."""

    settings: Settings
    bundle: Bundle
    bucket: Bucket
    parent: str
    cluster: LiveCluster
    records: RolloutRecords


def _load(config: Path) -> _Scene:
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.render import render
    from hyperpod_kit.bundle.stored import THREADS
    from hyperpod_kit.config.load import load
    from hyperpod_kit.remote.rollout.record import RolloutRecords

    settings = load(config)
    if not settings.entry_script:
        raise UsageError("in ami_only mode no lifecycle script runs, so there is no bundle to roll out")
    bundle = render(settings)
    bucket = Bucket(bundle.bucket, settings.cluster.region, connections=THREADS)
    parent = bundle.prefix[: -len(bundle.bundle_id) - 1]
    cluster = make_live_cluster(Cluster(settings.cluster.name, settings.cluster.region, settings))
    return _Scene(settings, bundle, bucket, parent, cluster, RolloutRecords(bucket, parent))


def _start(request: RolloutRequest, *, resumes: bool) -> int:
    import hashlib

    from hyperpod_kit.bundle import manifest
    from hyperpod_kit.bundle.upload import require_uploaded
    from hyperpod_kit.remote.rollout.node_switch import TargetBundle
    from hyperpod_kit.remote.rollout.record import RolloutRecord, RolloutState

    scene = _load(request.config)
    bundle = scene.bundle
    require_uploaded(bundle, scene.bucket)
    record = _read_record(scene, request)
    if resumes and (record is None or record.bundle_id != bundle.bundle_id):
        raise ClusterError(
            f"cannot resume: no rollout of bundle {bundle.bundle_id}, which this configuration renders",
            hint="hyperpod-kit rollout start, which also ends the pause of another bundle",
        )
    if record is None or record.bundle_id != bundle.bundle_id:
        record = RolloutRecord(bundle.bundle_id, RolloutState.RUNNING, "", "", 0.0)
    elif not resumes and scene.records.is_pause_wanted():
        raise ClusterError(f"the rollout of bundle {bundle.bundle_id} is paused", hint="hyperpod-kit rollout resume")
    digest = hashlib.sha256(bundle.files[manifest.SUMS]).hexdigest()
    target_bundle = TargetBundle(bundle.bundle_id, digest, bundle.source_s3_uri)
    targets = _targets(scene, request)
    claimed = _claimed(record, RolloutState.RUNNING)
    code = _roll(scene, request, dict.fromkeys(targets, target_bundle), claimed, RolloutState.DONE)
    if not request.dry_run:
        _print_groups_with_another_bundle(scene)
    return code


def _read_record(scene: _Scene, request: RolloutRequest) -> Optional[RolloutRecord]:
    """Return the record of the last rollout. Raises ClusterError while another run of the command switches nodes."""
    record = scene.records.read()
    if record is None or not record.is_running or request.take_over or request.dry_run:
        return record
    changed_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.changed_at))
    raise ClusterError(
        f"a rollout of bundle {record.bundle_id} on cluster {scene.cluster.name} is running, by {record.by}; "
        f"its record was last written at {changed_at}",
        hint="hyperpod-kit rollout pause ends it after its batch; if its machine is gone, repeat the command with "
        "--take-over",
    )


def _claimed(record: RolloutRecord, state: RolloutState) -> RolloutRecord:
    """Return the record as this run of the command writes it first."""
    by = f"{getpass.getuser()} on {socket.gethostname()}"[:BY]
    return replace(record, state=state, run=secrets.token_hex(8), by=by)


def _targets(scene: _Scene, request: RolloutRequest) -> list[NodeTarget]:
    """Return the nodes that are meant. Raises Absent, UsageError, ClusterError, AwsError, Unreachable."""
    from hyperpod_kit.cluster.nodes import list_nodes, resolve_nodes

    targets = scene.cluster.require_targets()
    if not request.nodes:
        return targets
    named = resolve_nodes(list_nodes(scene.cluster.sagemaker, scene.cluster.name), request.nodes)
    ids = {node.instance_id for node in named}
    return [target for target in targets if target.instance_id in ids]


@contextmanager
def _open_connector(
    scene: _Scene, ssh: SshSettings, targets: Sequence[NodeTarget]
) -> Iterator[Callable[[NodeTarget], Runner]]:
    from hyperpod_kit.remote.transports import transport_choice

    with transport_choice.open_ssh_or_ssm_connector(scene.cluster, ssh, targets, print_to_stderr) as connect:
        yield connect


def _query_bundles(
    targets: Sequence[NodeTarget], connect: Callable[[NodeTarget], Runner], ssh: SshSettings
) -> list[NodeBundle]:
    from hyperpod_kit.remote.diagnosis.installed_bundles import query_bundles

    with progress_bar(f"querying {counted(len(targets), 'node')}", len(targets)) as advance:
        return query_bundles(targets, connect, timeout=ssh.command_timeout, progress=lambda _: advance(1))


def _roll(
    scene: _Scene,
    request: RolloutRequest,
    bundle_by_target: Mapping[NodeTarget, TargetBundle],
    record: RolloutRecord,
    end: RolloutState,
) -> int:
    """Show what is to be done, ask, and do it; the exit code."""
    from hyperpod_kit.cli.views.rollout_show import RolloutReport, command_to_go_on, print_plan
    from hyperpod_kit.cluster.nodes import slurm_node_name
    from hyperpod_kit.cluster.software import parse_rollout
    from hyperpod_kit.remote.rollout.batches import batch_size, plan_batches
    from hyperpod_kit.remote.rollout.mount_check import find_mount_problems
    from hyperpod_kit.remote.rollout.node_switch import NodeSwitcher
    from hyperpod_kit.remote.rollout.record import RolloutState
    from hyperpod_kit.remote.rollout.rollout import RolloutRun

    speed = parse_rollout(request.batch, 0)
    size = batch_size(speed.count, speed.percent, len(bundle_by_target))
    first = request.first
    # A pause that comes from now on is one of this run.
    was_paused = scene.records.is_pause_wanted()
    # Of the bundle before, the configuration says nothing: what its nodes report counts.
    expected: Mapping[str, Sequence[Mount]] = {}
    if end == RolloutState.DONE:
        expected = scene.cluster.expected_mounts_by_group()
    with _open_connector(scene, first.ssh, list(bundle_by_target)) as connect:
        node_bundles = _query_bundles(list(bundle_by_target), connect, first.ssh)
        plan = plan_batches(node_bundles, bundle_by_target, size, record.at_work, backwards=end == RolloutState.UNDONE)
        names = [slurm_node_name(target.address) for batch in plan.batches for target in batch]
        first.load_jobs_on_nodes(scene.cluster, names)
        report = RolloutReport(scene.cluster.name, record, plan, {row.target: row.current for row in node_bundles})
        print_plan(report)
        if request.dry_run:
            return _end(report, request)
        if plan.batches:
            require_confirmation(
                f"{_jobs_question_prefix(first)}Switch {counted(plan.count, 'node')} in "
                f"{counted(len(plan.batches), 'batch', 'batches')}?",
                yes=request.yes,
            )
        if was_paused:
            scene.records.set_pause(False)
        run = RolloutRun(
            plan,
            report.current,
            NodeSwitcher(connect),
            first,
            lambda targets: find_mount_problems(targets, connect, expected),
            print_to_stderr,
        )
        next_command = command_to_go_on(end)
        try:
            record = run.run(scene.records, record, end)
        except KeyboardInterrupt:
            print_to_stderr(f"\nnext: {next_command} continues from here")
            raise
        except WaitTimeout as err:
            hint = f"{next_command} continues; --drain-timeout SECONDS waits longer"
            raise WaitTimeout(err.message, hint=hint) from err
    return _end(replace(report, record=record, switches=tuple(run.switches)), request)


def _jobs_question_prefix(first: JobsFirst) -> str:
    """Return what the question begins with: how many jobs have the nodes, and what becomes of them."""
    if first.listing_error:
        return f"It is not known which jobs run there ({first.listing_error}). "
    if not first.jobs:
        return ""
    ids = ", ".join(job.id for job in first.jobs[:5])
    if len(first.jobs) > 5:
        ids = f"{ids}, …"
    fate = "they continue with the bundle that they started with"
    if first.is_requested:
        fate = "each batch waits for the jobs on its nodes"
    return f"Jobs on these nodes: {len(first.jobs)} ({ids}); {fate}. "


def _end(report: RolloutReport, request: RolloutRequest) -> int:
    from hyperpod_kit.cli.views.rollout_show import print_end

    if request.as_json:
        print_json(request.command, {**report.to_dict(), **request.first.to_dict()})
    if not request.dry_run:
        print_end(report)
    return report.exit_code


def _print_groups_with_another_bundle(scene: _Scene) -> None:
    """Say which bundle nodes get that come from now on, where that is another one."""
    live = scene.cluster.sagemaker.describe_cluster(scene.cluster.name)
    groups = [
        str(group.get("InstanceGroupName", ""))
        for group in live.get("InstanceGroups", [])
        if group.get("LifeCycleConfig", {}).get("SourceS3Uri", "").rstrip("/") != scene.bundle.source_s3_uri.rstrip("/")
    ]
    if groups:
        print_to_stderr(
            f"nodes of {', '.join(groups)} created from now on get another bundle; next: hyperpod-kit update-cluster"
        )
