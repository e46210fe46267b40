"""events."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterable, Optional

import click

from hyperpod_kit.cli.cluster.waiting import interval_option
from hyperpod_kit.cli.terminal.options import cluster_options, json_option, resolve_cluster
from hyperpod_kit.cli.terminal.output import print_json, print_json_line, print_styled, print_to_stderr
from hyperpod_kit.cluster.times import format_utc
from hyperpod_kit.untrusted.text import counted, shortened

if TYPE_CHECKING:
    from hyperpod_kit.cluster.events import Event

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LONGEST = 2000
"""Characters of an event in a line for a person; --json has all of it."""
_STYLES = {"Error": "bold red", "Warn": "yellow"}


def parse_since_option(ctx: click.Context, param: click.Parameter, value: Optional[str]) -> Optional[datetime]:
    """Parse `30m` or `2h` ago, or a time in ISO form (UTC without a zone), for a click option.

    Raises click.BadParameter.
    """
    if value is None:
        return None
    ago = re.fullmatch(r"(\d{1,9})([smhd])", value)
    try:
        if ago:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value}: expected something like 45s, 30m, 2h, 3d or 2026-01-31T12:00") from None
    if moment.tzinfo:
        return moment
    return moment.replace(tzinfo=timezone.utc)


@click.command("events")
@cluster_options
@click.option(
    "--since",
    metavar="WHEN",
    callback=parse_since_option,
    help="Start of the period: 45s, 30m, 2h or 3d ago, or 2026-01-31T12:00 (UTC).",
)
@click.option("--group", metavar="NAME", help="Only this instance group.")
@click.option("--node", metavar="NODE", help="Only this node: an instance id, or as for replace-node.")
@click.option(
    "--level",
    type=click.Choice(["Info", "Warn", "Error"], case_sensitive=False),
    default="Info",
    show_default=True,
    help="Lowest level to show.",
)
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(0), help="Number of newest events to show; 0 for all."
)
@click.option("--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@interval_option
@json_option
def events(
    config: Path,
    cluster: Optional[str],
    region: Optional[str],
    since: Optional[datetime],
    group: Optional[str],
    node: Optional[str],
    level: str,
    limit: int,
    follow: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show what HyperPod did and what failed, with AWS's reason, oldest first.

    Only clusters with continuous provisioning have events; for others the exit code is 2. With --follow, --json prints
    one line per event.

    \b
    Examples:
      hyperpod-kit events --since 2h
      hyperpod-kit events --level Error --limit 0
      hyperpod-kit events --cluster demo --follow
    """
    from hyperpod_kit.aws.sagemaker import SageMaker
    from hyperpod_kit.cluster.events import list_events
    from hyperpod_kit.cluster.nodes import is_instance_id, list_nodes, resolve_nodes

    chosen = resolve_cluster(config, cluster, region)
    sagemaker = SageMaker(chosen.region)
    # Events tell of nodes that are gone too, which have an instance id and no other name any more.
    if node and not is_instance_id(node):
        node = resolve_nodes(list_nodes(sagemaker, chosen.name), [node])[0].instance_id

    def query(after: Optional[datetime], newest: Optional[int]) -> list[Event]:
        return list_events(
            sagemaker, chosen.name, after=after, group=group, node=node, level=level.capitalize(), newest=newest
        )

    fetched = query(since, limit or None)
    if not follow:
        if as_json:
            print_json("events", {"cluster": chosen.name, "events": [event.to_dict() for event in fetched]})
            return
        _print_events(fetched)
        advice = ""
        if len(fetched) == limit:
            advice = " (--limit 0 for all)"
        print_to_stderr(f"{counted(len(fetched), 'event')} of cluster {chosen.name}" + advice)
        return
    shown_ids: set[str] = set()
    while True:
        fresh = [event for event in fetched if event.id not in shown_ids]
        shown_ids |= {event.id for event in fresh}
        if as_json:
            for event in fresh:
                print_json_line("events", event.to_dict())
        else:
            _print_events(fresh)
        since = max([event.at for event in fresh], default=since)
        time.sleep(interval)
        fetched = _query_with_limited_retries(partial(query, since, None), interval)


def _query_with_limited_retries(query: Callable[[], list[Event]], interval: float) -> list[Event]:
    """Call `query` again after Unreachable, PATIENCE times in all.

    Raises NoCredentials at once, Unreachable at the end.
    """
    from hyperpod_kit.cluster.wait import PATIENCE
    from hyperpod_kit.errors import NoCredentials, Unreachable

    for turn in range(1, PATIENCE):
        try:
            return query()
        except NoCredentials:
            raise
        except Unreachable as err:
            print_to_stderr(f"{err.message}; retrying ({turn} of {PATIENCE - 1})")
        time.sleep(interval)
    return query()


def _print_events(events: Iterable[Event]) -> None:
    """A line an event: when, level, where, what, why."""
    for event in events:
        text = shortened(event.line(), LONGEST)
        if event.lifecycle:
            text += f"  (lifecycle script: {event.lifecycle})"
        print_styled([(format_utc(event.at), "dim"), (f"{event.level:5}", _STYLES.get(event.level, "")), (text, "")])
