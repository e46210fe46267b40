"""fleet."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NoReturn, Optional

import click

from hyperpod_kit.cli.cluster.ssh_options import make_live_cluster, ssh_options
from hyperpod_kit.cli.terminal.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import (
    clear_screen,
    print_json,
    print_json_line,
    print_table,
    print_text,
    print_to_stderr,
    progress_bar,
)
from hyperpod_kit.errors import AwsError, ClusterError, Unreachable, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.remote.fleet.fleet_view import FleetView
    from hyperpod_kit.remote.target import SshSettings

_sleep = time.sleep


@click.command("fleet")
@cluster_options
@click.option(
    "--root", "roots", multiple=True, metavar="ROOT", help="Show the steps of the jobs of this root too; repeatable."
)
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write an HTML page to FILE.",
)
@click.option("--watch", type=click.FloatRange(1), metavar="SECONDS", help="Poll at this interval until Ctrl-C.")
@click.option("--per-node", "each", is_flag=True, help="Print one row per node instead of grouping them.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Save the nodes' records, one file per node.",
)
@click.option(
    "--notes",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Read records written by --save; neither nodes nor AWS are queried.",
)
@functools.partial(ssh_options, timeout=15.0)
@json_option
def fleet(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    roots: tuple[str, ...],
    page: Optional[Path],
    watch: Optional[float],
    each: bool,
    save: Optional[Path],
    notes: Optional[Path],
    ssh: SshSettings,
    as_json: bool,
) -> int:
    """Show nodes, jobs and storage of a cluster on one screen, problems first.

    The data is what nodes already publish: records of health and device checks, findings of the guard about Slurm,
    metrics, and Slurm's queue. Nothing is checked again and nothing is changed; use `validate-mounts` to check the
    mounts now. A node that does not answer is silent; a node whose checks have stopped is reported separately. With
    --root, steps and their rate are read from the records of a checkpoint root, here or on a node.

    With --json and --watch, each poll prints one line.

    The exit code is 0 when no node, mount or job has a fault and every node answers, 1 otherwise, and 3 when AWS does
    not answer.

    \b
    Examples:
      hyperpod-kit fleet
      hyperpod-kit fleet --root /fsx/runs/llama --html fleet.html
      hyperpod-kit fleet --watch 10
      hyperpod-kit fleet --save notes  # later: hyperpod-kit fleet --notes notes
    """
    if notes is not None:
        if watch is not None or save is not None:
            raise UsageError("--notes reads saved notes and queries no node", hint="leave out --watch and --save")
        view = _view_of_saved_notes(notes, cluster or "saved notes", roots)
        _show(view, page, each, as_json)
        return _exit_code(view)
    from hyperpod_kit.remote.fleet.gathering import query_fleet
    from hyperpod_kit.remote.fleet.node_notes import save_notes

    live = make_live_cluster(resolve_cluster(config, cluster, region))

    def look() -> FleetView:
        bar = functools.partial(progress_bar, "querying nodes")
        view, read = query_fleet(live, ssh, roots, print_to_stderr, bar, time.time)
        if save is not None:
            save_notes(save, read)
        return view

    view = look()
    if watch is not None:
        _watch(view, look, watch, lambda seen: _redraw(seen, page, each, as_json))
    _show(view, page, each, as_json)
    return _exit_code(view)


def _view_of_saved_notes(directory: Path, cluster: str, roots: tuple[str, ...]) -> FleetView:
    """Return the view at the time of the newest notes. Raises Absent."""
    from hyperpod_kit.remote.fleet.fleet_view import build_fleet_view
    from hyperpod_kit.remote.fleet.gathering import query_roots
    from hyperpod_kit.remote.fleet.node_notes import read_saved_notes

    not_known = ["Slurm's queue: saved notes do not contain it"]
    statuses = query_roots(roots, None, not_known)
    return build_fleet_view(cluster, None, read_saved_notes(directory), (), statuses, not_known)


def _watch(
    view: FleetView, look: Callable[[], FleetView], seconds: float, redraw: Callable[[FleetView], None]
) -> NoReturn:
    """Draw looks without an end; one that fails is reported, and the next one is waited for."""
    while True:
        due = time.monotonic() + seconds
        redraw(view)
        _sleep(max(0.0, due - time.monotonic()))
        try:
            view = look()
        except (AwsError, ClusterError, Unreachable) as err:
            print_to_stderr(f"could not query the cluster: {err.message}")


def _show(view: FleetView, page: Optional[Path], each: bool, as_json: bool) -> None:
    from hyperpod_kit.cli.views.fleet_tables import build_fleet_tables, describe_gaps, summarize

    _write_page(view, page)
    if as_json:
        print_json("fleet", view.to_dict())
    else:
        for table in build_fleet_tables(view, each):
            print_table(table)
            print_text()
        for line in describe_gaps(view):
            print_text(line, fg="yellow")
    print_to_stderr(summarize(view))


def _redraw(view: FleetView, page: Optional[Path], each: bool, as_json: bool) -> None:
    """Show a look in the place of the one before; to a pipe below it, with --json as a line."""
    if as_json:
        _write_page(view, page)
        print_json_line("fleet", view.to_dict())
        return
    clear_screen()
    _show(view, page, each, as_json)


def _write_page(view: FleetView, page: Optional[Path]) -> None:
    if page is not None:
        from hyperpod_kit.cli.views import fleet_html, html_page

        html_page.write_html_page(page, fleet_html.render_fleet_html(view))


def _exit_code(view: FleetView) -> int:
    if view.healthy:
        return 0
    return 1
