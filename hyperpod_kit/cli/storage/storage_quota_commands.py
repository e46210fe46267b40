"""storage quota."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import HyperpodKitError, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.storage.quota.limits import QuotaUsed

STATE = "/var/lib/hyperpod-kit/quota-state.json"


@click.group(cls=SummaryGroup)
def quota() -> None:
    """Limit what directories may hold, and send alerts before they are full."""


@quota.command("set")
@click.argument("directory")
@click.option("--bytes", "hard", metavar="SIZE", default="0B", help="Hard limit in bytes; without it there is none.")
@click.option(
    "--soft-bytes",
    metavar="SIZE",
    default="0B",
    help="Soft limit in bytes, which may be exceeded for --grace (Lustre).",
)
@click.option("--files", metavar="COUNT", default="0", help="Hard limit on the number of files (Lustre).")
@click.option("--soft-files", metavar="COUNT", default="0", help="Soft limit on the number of files (Lustre).")
@click.option(
    "--grace", metavar="TIME", default="7d", show_default=True, help="Grace time of all soft limits of the file system."
)
@click.option("--project", type=click.IntRange(1), help="Project id on Lustre; default: the owner's uid.")
@click.option("--dry-run", is_flag=True, help="Show the commands, and run nothing.")
@json_option
def set_quota(
    directory: str,
    hard: str,
    soft_bytes: str,
    files: str,
    soft_files: str,
    grace: str,
    project: Optional[int],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Limit what DIRECTORY may hold, on Lustre (by a project) or btrfs (by a subvolume).

    Run as root on a machine that has it mounted. A note in the directory records the limit, and the error of a
    checkpoint that exceeds it shows the note. Limits do not apply to root. The grace time applies to all projects of a
    Lustre file system.

    \b
    Examples:
      hyperpod-kit storage quota set /fsx/alice --bytes 10TiB --soft-bytes 8TiB --files 10M
      hyperpod-kit storage quota set /scratch/alice --bytes 500GiB --dry-run
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.plan import facts
    from hyperpod_kit.storage.quota import backends
    from hyperpod_kit.storage.quota.limits import QuotaLimits

    sizes = (
        facts.parse_size(soft_bytes),
        facts.parse_size(hard),
        facts.parse_count(soft_files),
        facts.parse_count(files),
    )
    limits = QuotaLimits(*map(int, sizes))
    runner = LocalRunner()
    seconds = int(facts.parse_seconds(grace))
    with backends.open_directory(directory) as target:
        backend = backends.choose_backend(target, runner, project)
        if dry_run:
            commands = target.commands_with_real_path(
                backend.build_limit_commands(target.proc_fd_path, limits, seconds)
            )
        else:
            commands = backends.apply_limits_and_write_note(backend, target, limits, seconds, runner)
    if as_json:
        print_json(
            "storage quota set",
            {"directory": target.path, "file_system": backend.name, "dry_run": dry_run, "commands": commands},
        )
    else:
        prefix = "ran: "
        if dry_run:
            prefix = "would run: "
        for argv in commands:
            print_text(prefix + " ".join(argv))
    return 0


@quota.command("show")
@click.argument("directories", nargs=-1, required=True)
@json_option
def show_quota(directories: tuple[str, ...], as_json: bool) -> int:
    """Show the usage and the limits of directories.

    The exit code is 1 when one of them is 80 % full, or when one of several could not be read.

    \b
    Examples:
      hyperpod-kit storage quota show /fsx/alice /fsx/bob
    """
    from hyperpod_kit.cli.terminal.output import print_json, print_to_stderr
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.quota import backends

    runner = LocalRunner()
    usages, failed = [], []
    for directory in map(os.path.abspath, directories):
        try:
            usages.append(backends.read_usage(directory, runner))
        except (HyperpodKitError, OSError) as err:
            if len(directories) == 1:
                raise
            failed.append(f"{directory}: {err}")
    if as_json:
        print_json("storage quota show", {"directories": [usage.to_json() for usage in usages]})
    else:
        _print_quota_usage(usages)
    for line in failed:
        print_to_stderr(f"failed: {line}")
    if failed or any(usage.is_nearly_full for usage in usages):
        return 1
    return 0


@quota.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    default=STATE,
    show_default=True,
    metavar="FILE",
    help="Which alerts were accepted.",
)
@click.option("--dry-run", is_flag=True, help="Check, and send no alerts.")
@json_option
def check_quota(file: Path, state: Path, dry_run: bool, as_json: bool) -> int:
    """Send an alert once to the owners and admins of directories that are 80 % full.

    FILE names the directories with their owners' mail addresses, the admins, and the destinations of alerts: mail,
    SNS, CloudWatch, Prometheus, the login message. Run the command from a timer. An alert is sent once to each address
    and topic, and each check retries until the server has accepted it; --state records which have. A directory gets
    another alert only after it was below 75 %.

    The exit code is 1 when a directory is above the threshold, an alert has not been accepted, or a directory could
    not be checked.

    \b
    Examples:
      hyperpod-kit storage quota check /etc/hyperpod-kit/quotas.json
    """
    from hyperpod_kit.cli.terminal import alerts_show
    from hyperpod_kit.cli.terminal.output import print_json
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.alerts import config
    from hyperpod_kit.storage.quota import backends
    from hyperpod_kit.storage.quota.check import check_quotas_and_alert

    runner = LocalRunner()
    loaded = config.load(file)
    if not loaded.directories:
        raise UsageError(f"{file}: the file names no directories to check")
    done = check_quotas_and_alert(
        loaded, lambda directory: backends.read_usage(directory, runner), state, dry_run=dry_run
    )
    if as_json:
        print_json("storage quota check", {**done.to_json(), "dry_run": dry_run})
    else:
        _print_quota_usage(done.used)
        alerts_show.print_alerts(done.above, done.alerts, dry_run=dry_run)
    alerts_show.print_failed_and_unaddressed_alerts(
        done.alerts, loaded.sinks, str(file), published_elsewhere=loaded.sinks.has_quota_state_sink
    )
    if done.above or done.alerts.failed or done.alerts.waiting:
        return 1
    return 0


@quota.command("stop")
@click.argument("target", metavar="FS-ID|s3://BUCKET/PREFIX/")
@click.argument("access_points", nargs=-1, metavar="[ACCESS-POINT-ID…]")
@click.option("--region", help="AWS region; default: AWS_DEFAULT_REGION.")
@click.option("--dry-run", is_flag=True, help="Show who would be stopped, and change nothing.")
@json_option
def stop_writes(
    target: str, access_points: tuple[str, ...], region: Optional[str], dry_run: bool, as_json: bool
) -> int:
    """Deny writing through access points of EFS, or below a prefix of a bucket.

    Neither EFS nor S3 has limits for directories, so the command changes the policy of the file system or of the
    bucket. On EFS, deleting is denied too: an admin deletes through another access point. In S3, objects can still be
    deleted. Other statements of the policy are kept.

    \b
    Examples:
      hyperpod-kit storage quota stop fs-0123456789abcdef0 fsap-0123456789abcdef0
      hyperpod-kit storage quota stop s3://my-bucket/checkpoints/alice/ --dry-run
    """
    if _is_bucket_prefix_raising_on_mismatch(target, access_points):
        return _stop_or_resume_writes_below_prefix(target, True, region, dry_run, as_json)
    return _stop_or_resume_access_point_writes(target, access_points, (), region, dry_run, as_json)


@quota.command("resume")
@click.argument("target", metavar="FS-ID|s3://BUCKET/PREFIX/")
@click.argument("access_points", nargs=-1, metavar="[ACCESS-POINT-ID…]")
@click.option("--region", help="AWS region; default: AWS_DEFAULT_REGION.")
@click.option("--dry-run", is_flag=True, help="Show who could write again, and change nothing.")
@json_option
def resume_writes(
    target: str, access_points: tuple[str, ...], region: Optional[str], dry_run: bool, as_json: bool
) -> int:
    """Allow writing again after `stop`.

    \b
    Examples:
      hyperpod-kit storage quota resume fs-0123456789abcdef0 fsap-0123456789abcdef0
      hyperpod-kit storage quota resume s3://my-bucket/checkpoints/alice/
    """
    if _is_bucket_prefix_raising_on_mismatch(target, access_points):
        return _stop_or_resume_writes_below_prefix(target, False, region, dry_run, as_json)
    return _stop_or_resume_access_point_writes(target, (), access_points, region, dry_run, as_json)


def _is_bucket_prefix_raising_on_mismatch(target: str, access_points: tuple[str, ...]) -> bool:
    """Return whether the target is a prefix of a bucket.

    Raises UsageError for a prefix with access points, and for a file system without any.
    """
    prefix = target.startswith("s3://")
    if prefix == bool(access_points):
        problem = "specify the access points"
        if prefix:
            problem = "a prefix has no access points"
        raise UsageError(
            f"{target}: {problem}",
            hint="FS-ID ACCESS-POINT-ID…, or s3://BUCKET/PREFIX/",
        )
    return prefix


def _stop_or_resume_writes_below_prefix(
    target: str, stop: bool, region: Optional[str], dry_run: bool, as_json: bool
) -> int:
    from hyperpod_kit.aws.bucket_policy import BucketPolicies
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.quota import s3_stop

    bucket, prefix = s3_stop.split_prefix_url(target)
    policies = BucketPolicies(region)
    action = "resume"
    if stop:
        action = "stop"
    if dry_run:
        arn = policies.arn(bucket, f"{prefix}*")
        now = set(s3_stop.prefix_arns_denied_writing(policies.policy(bucket)))
        if stop:
            stopped = now | {arn}
        else:
            stopped = now - {arn}
        after = sorted(stopped)
    else:
        after = s3_stop.update_stopped_prefixes(policies, bucket, **{action: [prefix]})
    if as_json:
        print_json(f"storage quota {action}", {"bucket": bucket, "dry_run": dry_run, "stopped": after})
    else:
        tense = ""
        if dry_run:
            tense = "would be "
        print_text(f"s3://{bucket}: {tense}stopped: {', '.join(after) or 'none'}")
    return 0


def _stop_or_resume_access_point_writes(
    file_system_id: str,
    stop: tuple[str, ...],
    resume: tuple[str, ...],
    region: Optional[str],
    dry_run: bool,
    as_json: bool,
) -> int:
    from hyperpod_kit.aws.efs import Efs
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.storage.quota import efs_stop
    from hyperpod_kit.storage.quota.limits import QuotaError

    efs = Efs(region)
    arns = {point["AccessPointId"]: point["AccessPointArn"] for point in efs.access_points(file_system_id)}
    for name in (*stop, *resume):
        if name not in arns:
            raise QuotaError(
                f"{file_system_id} has no access point {name}", hint=f"it has: {', '.join(sorted(arns)) or 'none'}"
            )
    changes = {"stop": [arns[name] for name in stop], "resume": [arns[name] for name in resume]}
    if dry_run:
        now = set(efs_stop.access_point_arns_denied_writing(efs.policy(file_system_id)))
        after = sorted((now | set(changes["stop"])) - set(changes["resume"]))
    else:
        after = efs_stop.update_stopped_access_points(efs, file_system_id, **changes)
    action = "resume"
    if stop:
        action = "stop"
    if as_json:
        print_json(f"storage quota {action}", {"file_system": file_system_id, "dry_run": dry_run, "stopped": after})
    else:
        tense = ""
        if dry_run:
            tense = "would be "
        print_text(f"{file_system_id}: {tense}stopped: {', '.join(after) or 'none'}")
    return 0


def _print_quota_usage(usages: list[QuotaUsed]) -> None:
    from hyperpod_kit.cli.terminal.output import print_table, table_cell
    from hyperpod_kit.cli.views.storage_usage_show import format_size

    numbers = [Column(head, is_number=True) for head in ("USED", "LIMIT", "FULL")]
    counts = [Column(head, is_number=True, may_miss=True) for head in ("FILES", "FILE LIMIT")]
    grid = TextTable(("DIRECTORY", *numbers, *counts, Column("GRACE", may_miss=True)))
    for usage in usages:
        limits = usage.limits
        room, files = limits.hard_bytes or limits.soft_bytes, limits.hard_files or limits.soft_files
        if usage.files is None:
            counted = "not counted"
        else:
            counted = f"{usage.files:,}"
        room_text = "none"
        if room:
            room_text = format_size(room)
        file_text = "none"
        if files:
            file_text = f"{files:,}"
        values = (format_size(usage.bytes), room_text, f"{usage.share:.1%}", counted, file_text)
        grid.add_row(*map(table_cell, (usage.directory, *values, usage.grace)))
    print_table(grid)
