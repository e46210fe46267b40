"""`hyperpod-kit diagnose --actions`: who was acted on with root's rights, where, when and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from hyperpod_kit.cli.output import bar, data, out, say

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import NodeTarget
    from hyperpod_kit.run import Runner

A_DAY = timedelta(days=1)


def show(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    since: Optional[datetime],
    *,
    timeout: float,
    as_json: bool,
) -> int:
    """Exit code 0 when every node has said what was done on it, 1 when one could not be asked."""
    from hyperpod_kit.remote.actions import query_nodes

    begin = (since or datetime.now(timezone.utc) - A_DAY).timestamp()
    with bar(f"asking {len(targets)} nodes", len(targets)) as advance:
        found = query_nodes(targets, connect, begin, timeout=timeout, progress=lambda told: advance(1))
    silent = [told for told in found if told.error]
    if as_json:
        data(
            {
                "since": begin,
                "nodes": [
                    {
                        "instance_id": told.target.instance_id,
                        "group": told.target.group,
                        "error": told.error,
                        "actions": [asdict(one) for one in told.actions],
                    }
                    for told in found
                ],
            }
        )
        return 1 if silent else 0
    lines = [
        (one.at, f"{told.target.group} {told.target.instance_id}  {one.to_line()}")
        for told in found
        for one in told.actions
    ]
    for _, line in sorted(lines):
        out(line)
    for told in silent:
        say(f"{told.target.group} {told.target.instance_id} is not among them: {told.error}")
    say(
        f"{len(lines)} actions on {len(found) - len(silent)} of {len(found)} nodes since "
        f"{datetime.fromtimestamp(begin, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    )
    return 1 if silent else 0
