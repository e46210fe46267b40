"""update-cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Sequence

import click

from hyperpod_kit.cli.confirm import confirm
from hyperpod_kit.cli.options import config_argument, json_option
from hyperpod_kit.cli.output import cell, console, data, say
from hyperpod_kit.cli.waiting import interval_option, timeout_option, until_ready

if TYPE_CHECKING:
    from hyperpod_kit.cluster.update import Update


@click.command("update-cluster")
@config_argument
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask, also when nodes go.")
@click.option("--wait", "then_wait", is_flag=True, help="Return when every node runs.")
@timeout_option
@interval_option
@json_option
def update_cluster(
    config: Path, dry_run: bool, yes: bool, then_wait: bool, timeout: float, interval: float, as_json: bool
) -> int:
    """Bring the cluster to the configuration; shows first what that means.

    Some of it happens in place, some only on nodes that come from now on, and some the API cannot do at all: then
    nothing is sent, and the exit code is 1. With --wait it is 1 too when AWS gives the change up. A change that was
    sent is not sent again, so the command can be repeated.

    \b
    Examples:
      hyperpod-kit update-cluster --dry-run
      hyperpod-kit update-cluster --wait
      hyperpod-kit update-cluster --dry-run --json  # the changes, and the request
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.bundle.upload import require_uploaded
    from hyperpod_kit.cluster import create, update
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.plan(settings)
    sagemaker = SageMaker(settings.cluster.region)
    name = settings.cluster.name
    live = sagemaker.describe_cluster(name)
    found = update.plan(live, planned.request, settings.parameters.controller_group)
    if as_json:
        data(
            {
                "cluster": name,
                "possible": found.possible,
                "changes": [one.to_dict() for one in found.changes],
                "request": found.request,
            }
        )
    else:
        show_changes(found)
    if not found.possible:
        say(f"cluster {name} cannot become what {config} says; nothing was sent")
        return 1
    if dry_run:
        return 0
    if found.changes:
        update.require_sendable(live, found)
        if found.destroys:
            confirm(f"{found.destroys} nodes go, with everything on their own disks. Go on?", yes=yes)
        if planned.bundle is not None:
            require_uploaded(planned.bundle, Bucket(planned.bundle.bucket, settings.cluster.region))
        sagemaker.update_cluster(found.request)
        say(f"cluster {name} is being updated")
    else:
        say(f"cluster {name} is what {config} says")
    if then_wait:
        stale = str(live.get("FailureMessage", ""))
        until_ready(sagemaker, name, timeout=timeout, interval=interval, wanted=found.wanted, stale=stale)
        say(f"cluster {name} is ready")
    if found.old_groups:
        say(f"next: {_replacements(found.old_groups, settings.parameters.controller_group)}")
    return 0


def _replacements(groups: Sequence[str], controller: str) -> str:
    """How nodes that are there come to a change that only new ones get."""
    ways = []
    if set(groups) - {controller}:
        ways.append("hyperpod-kit replace-node for the nodes that are to have it")
    if controller in groups:
        ways.append(f"{controller} cannot be replaced: run the new bundle's entry script there by hand")
    return "; ".join(ways)


def show_changes(found: Update) -> None:
    """A row a change."""
    from rich.table import Table

    from hyperpod_kit.cluster.update import shown

    if not found.changes:
        return
    grid = Table()
    for column in ("where", "what", "now", "wanted", "how"):
        grid.add_column(column, overflow="fold")
    for one in found.changes:
        note = "; ".join(filter(None, (one.note, f"{one.destroys} nodes go" if one.destroys else "")))
        grid.add_row(
            *map(
                cell,
                (one.where, one.field, shown(one.before), shown(one.after), f"{one.how}{': ' if note else ''}{note}"),
            )
        )
    console().print(grid)
