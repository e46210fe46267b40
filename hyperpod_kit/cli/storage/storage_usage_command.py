"""storage usage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import click

from hyperpod_kit.cli.terminal.options import alert_options, json_option
from hyperpod_kit.errors import HyperpodKitError, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.storage.usage.report import UsageReport

BY = ("user", "group", "directory", "run")


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="PATH|s3://BUCKET/PREFIX…")
@click.option("--by", type=click.Choice(BY), multiple=True, help="Only this table; repeatable.")
@click.option("--depth", type=click.IntRange(0, 20), default=2, show_default=True, help="Depth of directories to show.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Maximum rows per table.")
@click.option(
    "--access-points", metavar="FS-ID", help="Show sums per access point; PATH is the root of this EFS file system."
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of newest checkpoints per run that are not listed.",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Number of processes; default: one per core, at most 8.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File that records the progress of the count.",
)
@click.option("--fresh", is_flag=True, help="Start again instead of continuing an interrupted count.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write an HTML page to FILE.",
)
@click.option("--price", type=click.FloatRange(0), metavar="USD", help="Price per GB and month, to show costs.")
@click.option(
    "--history",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with sizes by day; default: one per PATH in your home directory.",
)
@alert_options
@json_option
def usage(
    places: tuple[str, ...],
    by: tuple[str, ...],
    depth: int,
    top: int,
    access_points: Optional[str],
    keep: int,
    workers: Optional[int],
    state: Optional[Path],
    fresh: bool,
    page: Optional[Path],
    price: Optional[float],
    history: Optional[Path],
    alerts: Optional[Path],
    alerts_state: Optional[Path],
    as_json: bool,
) -> int:
    """Show who uses how much: by user, group, directory and run.

    The command reads the metadata of every file below each PATH, with several processes and little memory. If it is
    stopped, repeating it within a day continues where it was. File systems mounted below PATH are not entered, links
    are not followed, and a file with several names counts once. Old versions and unfinished uploads of a bucket are
    counted, because they are paid for.

    One result per day is stored. From the third day on, the growth and the time until the file system is full are
    shown, with their uncertainty. Nothing else is changed.

    For each run (a directory with RUN.json), the checkpoints that `checkpoint prune --latest` could delete are listed.

    The exit code is 1 when directories could not be read, or when one of several PATHs could not be counted.

    \b
    Examples:
      hyperpod-kit storage usage /fsx
      hyperpod-kit storage usage /fsx/checkpoints --by run --keep 5 --json
      hyperpod-kit storage usage /efs --access-points fs-0123456789abcdef0
      hyperpod-kit storage usage s3://my-bucket/checkpoints
      hyperpod-kit storage usage /fsx --html usage.html  # a self-contained page
      hyperpod-kit storage usage /fsx --by user --price 0.145
      hyperpod-kit storage usage /fsx --alerts /etc/hyperpod-kit/quotas.json
    """
    from hyperpod_kit.cli.terminal.output import print_to_stderr
    from hyperpod_kit.cli.views import storage_usage_show as show

    _require_single_path_for_options(places, state, access_points, history)
    reports, failed = [], []
    for root in places:
        try:
            made = _count_usage_of_tree_or_bucket(root, depth, access_points, keep, workers or 0, state, fresh)
            reports.append(_record_day_and_add_growth(made, history, price))
        except (HyperpodKitError, OSError) as err:
            if len(places) == 1:
                raise
            failed.append(f"{root}: not counted: {err}")
    show.print_usage_reports(reports, by or BY, top, as_json)
    if page is not None:
        from hyperpod_kit.cli.views import html_page, usage_page

        html_page.write_html_page(page, usage_page.render_usage_page(reports, top))
    for line in failed:
        print_to_stderr(line)
    waits = alerts is not None and _send_fullness_alerts_any_undelivered(reports, alerts, alerts_state)
    if failed or waits or any(report.unread_count for report in reports):
        return 1
    return 0


def _send_fullness_alerts_any_undelivered(
    reports: list[UsageReport], alerts_config: Path, outbox_path: Optional[Path]
) -> bool:
    """Send the alerts of these reports; return whether one still waits to be accepted or failed."""
    from hyperpod_kit.cli.terminal import alerts_show
    from hyperpod_kit.storage.usage import filling

    by_root = {report.root: report for report in reports}
    sent = alerts_show.check_send_and_print_alerts(
        alerts_config,
        outbox_path,
        "usage",
        list(by_root),
        lambda root, stood: filling.alert_if_full_or_full_soon(by_root[root], by_root[root].forecast, stood),
    )
    return bool(sent.waiting or sent.failed)


def _record_day_and_add_growth(
    report: UsageReport, history_path: Optional[Path], price: Optional[float]
) -> UsageReport:
    """Record this count in the history and return the report with growth and forecast.

    When the history cannot be written, that is reported on stderr and the report is returned without
    them.
    """
    from dataclasses import replace

    from hyperpod_kit.cli.terminal.output import print_to_stderr
    from hyperpod_kit.storage.usage import growth
    from hyperpod_kit.storage.usage import history as histories

    try:
        days = histories.record_day(history_path or histories.default_history_path(report.root), report).days
    except (HyperpodKitError, OSError) as err:
        print_to_stderr(f"{report.root}: today's size was not recorded: {err}")
        return replace(report, price=price)
    grown = growth.fit_growth(days)
    if grown is None or report.room is None:
        forecast = None
    else:
        forecast = growth.forecast_days_until_full(grown, report.room[1])
    return replace(report, growth=grown, forecast=forecast, history_days=len(days), price=price)


def _require_single_path_for_options(
    places: tuple[str, ...], state: Optional[Path], access_points: Optional[str], history: Optional[Path]
) -> None:
    """Raise UsageError for an option that means something for one PATH only."""
    for name, value in (("--state", state), ("--history", history)):
        if value is not None and len(places) > 1:
            raise UsageError(f"{name} requires a single PATH", hint="run the command once per PATH")
    if access_points and (len(places) > 1 or places[0].startswith("s3://")):
        raise UsageError("--access-points requires a single PATH, where the file system's / is mounted")


def _count_usage_of_tree_or_bucket(
    location: str, depth: int, access_points: Optional[str], keep: int, workers: int, state: Optional[Path], fresh: bool
) -> UsageReport:
    from dataclasses import replace

    from hyperpod_kit.cli.views import storage_usage_show as show
    from hyperpod_kit.storage.usage import report
    from hyperpod_kit.storage.usage.state import default_ledger_path, open_ledger_and_delete_on_success

    if location.startswith("s3://"):
        from hyperpod_kit.storage.usage import buckets

        where = buckets.parse_url(location)
        about: dict[str, Any] = {"root": where.url, "depth": depth}
        with open_ledger_and_delete_on_success(
            state or default_ledger_path(about), about, fresh=fresh
        ) as ledger, show.show_count_progress(where.url, ledger) as report_progress:
            buckets.count_prefix_into_ledger(where, depth, ledger, report_progress)
            return report.make_report(where.url, ledger)
    from hyperpod_kit.storage.usage.walk import WalkRequest, walk_tree_into_ledger
    from hyperpod_kit.untrusted import owner

    root = owner.run_as_owner_in_child_if_root(location, lambda: os.path.realpath(location))
    marks = {}
    if access_points:
        from hyperpod_kit.storage.usage.access_points import access_point_names_by_directory

        marks = access_point_names_by_directory(access_points, root)
    walk_request = WalkRequest(root, depth, marks, workers)
    about = walk_request.resume_identity()
    with open_ledger_and_delete_on_success(
        state or default_ledger_path(about), about, fresh=fresh
    ) as ledger, show.show_count_progress(root, ledger) as report_progress:
        walk_tree_into_ledger(walk_request, ledger, report_progress)
        made = report.make_report(root, ledger, marks.values())
        if not made.runs:
            return made
        # Only here: what knows checkpoints takes as long to import as 30,000 files to count.
        from hyperpod_kit.storage.usage import retained

        return replace(made, deletable=retained.list_deletable(made.runs, keep))
