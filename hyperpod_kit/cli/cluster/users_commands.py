"""users: the homes' access points and the policy of their file system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hyperpod_kit.cli.terminal.lazy import SummaryGroup
from hyperpod_kit.cli.terminal.options import config_argument, json_option
from hyperpod_kit.cli.terminal.output import print_document, print_json, print_table, print_to_stderr, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable

if TYPE_CHECKING:
    from hyperpod_kit.cluster.homes import ObservedHomes


@click.group(cls=SummaryGroup)
def users() -> None:
    """Manage home directories and shared directories on EFS: access points, their owners, and who may mount them."""


@users.command()
@config_argument
@click.option("--dry-run", is_flag=True, help="Show what would be created, and change nothing.")
@click.option(
    "--remove-open-statements",
    "remove_open",
    is_flag=True,
    help="Remove statements of the file system's policy that let clients mount without an IAM identity.",
)
@json_option
def apply(config: Path, dry_run: bool, remove_open: bool, as_json: bool) -> int:
    """Create the access points and the file system policy.

    Each user gets an access point, and so does each group that shares a directory; the policy denies access to
    everybody else. An existing access point with the right directory, uid and gid is used, whoever created it. Nothing
    is replaced or deleted. The ids are written beside CONFIG, where `render` and `upload` read them. The exit code is
    1 when the file system contradicts the configuration.

    \b
    Examples:
      hyperpod-kit users apply --dry-run
      hyperpod-kit users apply
    """
    from hyperpod_kit.aws.efs import Efs
    from hyperpod_kit.cluster import homes
    from hyperpod_kit.config.load import load
    from hyperpod_kit.config.settings import access_points

    settings = load(config)
    efs = Efs(settings.cluster.region)
    before = homes.observe_homes_and_plan_changes(efs, settings)
    if dry_run:
        _print_access_points(before, as_json, changed=not before.is_complete_with_policy_in_force, dry_run=True)
        if not as_json:
            homes.require_no_conflicts_or_public_policy(before, will_remove_public_statements=remove_open)
        if before.conflicts or (before.public_statement_names and not remove_open):
            return 1
        return 0
    homes.require_no_conflicts_or_public_policy(before, will_remove_public_statements=remove_open)
    after = homes.create_access_points_and_put_policy(efs, before)
    changed = (
        access_points.write_access_points(config, homes.access_points_to_record(after))
        or not before.is_complete_with_policy_in_force
    )
    _print_access_points(after, as_json, changed=changed, dry_run=False)
    if not as_json:
        advice = "nothing to do"
        if changed:
            advice = f"next: hyperpod-kit upload {config}"
        print_to_stderr(advice)
    return 0


@users.command()
@config_argument
@click.option("--execution-role", "role", is_flag=True, help="Print the policy that the nodes' role needs instead.")
def policy(config: Path, role: bool) -> None:
    """Print the policy that `apply` would set, for review or for other tools. Changes nothing.

    \b
    Examples:
      hyperpod-kit users policy
      hyperpod-kit users policy --execution-role
    """
    from hyperpod_kit.aws import policies
    from hyperpod_kit.aws.efs import Efs
    from hyperpod_kit.cluster import homes
    from hyperpod_kit.config.load import load

    settings = load(config)
    observed = homes.observe_homes_and_plan_changes(Efs(settings.cluster.region), settings)
    if observed.missing_access_points:
        print_to_stderr(
            "not in the policy yet: "
            f"{', '.join(item.desired.owner_description for item in observed.missing_access_points)} "
            "(run hyperpod-kit users apply)"
        )
    if role:
        document = policies.execution_role_policy(observed.arn, observed.existing_access_point_arns)
    else:
        document = observed.desired_policy()
    print_document(document)


def _print_access_points(observed: ObservedHomes, as_json: bool, *, changed: bool, dry_run: bool) -> None:
    if as_json:
        report: dict[str, Any] = {
            "file_system": observed.arn,
            "changed": changed,
            "dry_run": dry_run,
            "access_points": [item.to_dict() for item in observed.items],
            "without_user": [
                {
                    "user": orphan.user,
                    "id": orphan.id,
                    "uid": orphan.point.uid,
                    "gid": orphan.point.gid,
                    "root": orphan.point.root,
                }
                for orphan in observed.orphans
            ],
            "open_statements": observed.public_statement_names,
        }
        print_json("users apply", report)
        return
    from hyperpod_kit.config.settings import access_points

    grid = TextTable(
        ("USER", "UID", "GID", Column("DIRECTORY", folds=True), "ACCESS POINT"),
        f"homes on {observed.arn.rpartition('/')[2]}",
    )
    for item in observed.items:
        made = {"keep": "", "create": "new", "conflict": "conflict"}[item.action]
        access_point = " ".join(word for word in (item.existing.id if item.existing else "", made) if word)
        uid: object = item.desired.uid
        if uid == access_points.AS_WHO_ASKS:
            uid = ""
        grid.add_row(
            *map(table_cell, (item.desired.owner_description, uid, item.desired.gid, item.desired.root, access_point))
        )
    print_table(grid)
    for orphan in observed.orphans:
        whose = orphan.point.owner_description
        print_to_stderr(
            f"{orphan.description}: {whose} is no longer in the configuration; the access point is kept, and nodes "
            "may not mount it"
        )
    if dry_run:
        verdict = "the policy would be set"
        if observed.is_complete_with_policy_in_force:
            verdict = "the policy is up to date"
        print_to_stderr(verdict)
