"""storage tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.tier.fsx_release import FsxRelease
    from hyperpod_kit.storage.tier.run import TierPlan

PERCENT = click.FloatRange(0, 100)


@click.command()
@click.argument("roots", nargs=-1, required=True, metavar="ROOT…")
@click.option("--to", metavar="DIRECTORY|s3://…", help="Move to this directory or prefix, one root per run.")
@click.option("--delete", is_flag=True, help="Delete instead of moving.")
@click.option("--release", metavar="FILE-SYSTEM", help="Id of the FSx file system that exports and releases them.")
@click.option("--above", type=PERCENT, metavar="PERCENT", help="Act only when the file system is fuller than this.")
@click.option(
    "--until", type=PERCENT, metavar="PERCENT", help="Stop when the file system is at this; default: 10 below --above."
)
@click.option("--older-than", metavar="TIME", help="Only checkpoints older than this: 3d.")
@click.option(
    "--keep", type=click.IntRange(1), default=3, show_default=True, help="Number of newest checkpoints to keep per run."
)
@click.option("--dry-run", is_flag=True, help="Show what would be moved or deleted, and change nothing.")
@json_option
def tier(
    roots: tuple[str, ...],
    to: Optional[str],
    delete: bool,
    release: Optional[str],
    above: Optional[float],
    until: Optional[float],
    older_than: Optional[str],
    keep: int,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Move old checkpoints of runs to cheaper storage, or delete them.

    Each ROOT is the checkpoint root of a run. A move copies a checkpoint, reads the copy back, verifies every byte,
    and then deletes the original; if it is interrupted, repeat the command. These are always kept: the --keep newest
    valid checkpoints of each run (verified by reading them), anything newer than those, and checkpoints that are
    pinned, being restored, open, or cannot be judged. Ages are counted from the save; access times are not used.

    With --release, checkpoints stay on FSx for Lustre: data repository tasks export them to the linked bucket and
    release their space, and reading one loads it from there. Each file is checked with lfs hsm_state.

    The exit code is 1 when --until cannot be reached, or when something could not be checked or moved.

    \b
    Examples:
      hyperpod-kit storage tier /fsx/runs/* --to /archive --above 80 --until 70 --dry-run
      hyperpod-kit storage tier /fsx/runs/* --to s3://my-bucket/archive --older-than 30d --keep 1
      hyperpod-kit storage tier /fsx/scratch/run --delete --above 90
      hyperpod-kit storage tier /fsx/runs/* --release fs-0123456789abcdef0 --above 80
    """
    import time

    from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr, progress_bar
    from hyperpod_kit.cli.views.storage_usage_show import format_size
    from hyperpod_kit.storage.plan import facts
    from hyperpod_kit.storage.tier import run
    from hyperpod_kit.storage.tier.rules import TierRule

    if (bool(to), delete, bool(release)).count(True) != 1:
        raise UsageError(
            "specify a destination",
            hint="use one of --to DIRECTORY, --to s3://BUCKET/PREFIX, --release FS-ID, --delete",
        )
    shares = [None if percent is None else percent / 100 for percent in (above, until)]
    rule = TierRule(shares[0], shares[1], facts.parse_seconds(older_than) if older_than else None, keep)
    planned = run.make_plan(roots, rule, time.time())
    by_fsx = _look_up_links_for_fsx_release(release, planned) if release else None
    if not as_json:
        _print_tier_plan(planned)
    done = run.TierResult((), ())
    if not dry_run:
        with progress_bar("checkpoints", len(planned.choice.go)) as advance:
            if by_fsx:
                done = by_fsx.release_checkpoints(planned, rule, lambda item: advance(1))
            else:
                done = run.apply_plan(planned, rule, to, lambda item: advance(1))
    if as_json:
        moved = [f"{checkpoint.root}/{checkpoint.attempt}" for checkpoint in done.removed]
        print_json(
            "storage tier",
            {
                **planned.to_json(),
                "dry_run": dry_run,
                "to": to,
                "release": release,
                "gone": moved,
                "left": dict(done.retained),
            },
        )
    elif not dry_run:
        print_text(
            f"{counted(len(done.removed), 'checkpoint', spec=',')} removed or released, "
            f"{format_size(sum(checkpoint.size for checkpoint in done.removed))}"
        )
    for path, reason in (*planned.failed, *done.retained):
        print_to_stderr(f"{path}: {reason}")
    for name, short in planned.choice.short.items():
        print_to_stderr(
            f"file system {name}: {format_size(short)} more must be freed, but nothing else may be removed "
            "because of --keep, pins or other files"
        )
    if planned.failed or done.retained or planned.choice.short:
        return 1
    return 0


def _look_up_links_for_fsx_release(file_system_id: str, planned: TierPlan) -> FsxRelease:
    """Look up at FSx which bucket each root is linked to, and return the release of their files; changes
    nothing."""
    from hyperpod_kit.aws.fsx import Fsx
    from hyperpod_kit.cli.terminal.output import print_to_stderr
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.tier.fsx_link import locate_linked_roots
    from hyperpod_kit.storage.tier.fsx_release import FsxRelease

    fsx = Fsx()
    links = locate_linked_roots(fsx, file_system_id, [root.store.url for root in planned.roots])
    return FsxRelease(file_system_id, links, fsx, LocalRunner(), print_to_stderr)


def _print_tier_plan(planned: TierPlan) -> None:
    from hyperpod_kit.cli.terminal.output import print_table, print_text, table_cell
    from hyperpod_kit.cli.views.storage_usage_show import format_size

    columns = (
        "CHECKPOINT",
        Column("RUN", folds=True),
        "FATE",
        Column("ON DISK", is_number=True),
        Column("REASON", folds=True),
    )
    grid = TextTable(columns)
    for checkpoint in planned.choice.go:
        grid.add_row(*map(table_cell, (checkpoint.attempt, checkpoint.root, "goes", format_size(checkpoint.size), "")))
    going = {(checkpoint.root, checkpoint.attempt) for checkpoint in planned.choice.go}
    for root in planned.roots:
        for item in root.items:
            if (item.root, item.attempt) not in going:
                grid.add_row(
                    *map(
                        table_cell,
                        (item.attempt, item.root, "stays", format_size(item.size), "not needed to satisfy the rule"),
                    )
                )
        for attempt, reason in root.stay:
            grid.add_row(*map(table_cell, (attempt, root.store.url, "stays", "", reason)))
    print_table(grid)
    for pool in planned.pools:
        if pool.total:
            saved = sum(checkpoint.size for checkpoint in planned.choice.go if checkpoint.pool == pool.name)
            after = f"{pool.used / pool.total:.1%} full, {(pool.used - saved) / pool.total:.1%} afterwards"
            print_text(f"file system {pool.name}: {after}")
