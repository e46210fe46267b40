"""update-cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hyperpod_kit.cli.cluster_commands import interval_option, timeout_option
from hyperpod_kit.cli.options import config_argument, json_option
from hyperpod_kit.cli.output import console, data, say, watch

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

    Exit code 1 when something of it cannot be changed: nothing is sent then.

    \b
    Examples:
      hyperpod-kit update-cluster --dry-run
      hyperpod-kit update-cluster --wait
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.bundle.upload import require_uploaded
    from hyperpod_kit.cluster import create, update
    from hyperpod_kit.cluster.wait import wait_ready
    from hyperpod_kit.config.load import load

    settings = load(config)
    planned = create.plan(settings)
    sagemaker = SageMaker(settings.cluster.region)
    name = settings.cluster.name
    found = update.plan(sagemaker.describe_cluster(name), planned.request)
    if as_json:
        data({"cluster": name, "possible": found.possible, "changes": [one.to_dict() for one in found.changes]})
    else:
        show_changes(found)
    if not found.changes:
        say(f"cluster {name} is what {config} says")
        return 0
    if not found.possible:
        say(f"cluster {name} cannot become what {config} says; nothing was sent")
        return 1
    if dry_run:
        return 0
    if found.destroys and not yes:
        click.confirm(
            f"{found.destroys} nodes go, with everything on their own disks. Go on?", abort=True, err=True
        )
    if planned.bundle is not None:
        require_uploaded(planned.bundle, Bucket(planned.bundle.bucket, settings.cluster.region))
    sagemaker.update_cluster(found.request)
    say(f"cluster {name} is being updated")
    if then_wait:
        with watch() as show:
            wait_ready(sagemaker, name, timeout=timeout, interval=interval, progress=lambda state: show(state.line()))
        say(f"cluster {name} is ready")
    if any(one.how == update.NEW_NODES for one in found.changes):
        say("next: hyperpod-kit replace-node for the nodes that are to have it")
    return 0


def show_changes(found: Update) -> None:
    """A row a change."""
    from rich.table import Table
    from rich.text import Text

    if not found.changes:
        return
    grid = Table()
    for column in ("where", "what", "now", "wanted", "how"):
        grid.add_column(column, overflow="fold")
    for one in found.changes:
        note = one.note + (f"; {one.destroys} nodes go" if one.destroys else "")
        grid.add_row(one.where, one.field, Text(_short(one.before)), Text(_short(one.after)),
                     Text(f"{one.how}{': ' if note else ''}{note}"))
    console().print(grid)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
