"""`hyperpod-kit diagnose --actions`: who was acted on with root's rights, where, when and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr, progress_bar
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.remote.target import NodeTarget
    from hyperpod_kit.run import Runner

A_DAY = timedelta(days=1)


def query_and_print_root_actions(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    since: Optional[datetime],
    *,
    timeout: float,
    as_json: bool,
) -> int:
    """Query the nodes for actions taken with root's rights and print them; return the exit code.

    That is 0 when every node has answered, 1 when one could not be queried.
    """
    from hyperpod_kit.remote.diagnosis.actions import query_actions_done_as_root

    begin = (since or datetime.now(timezone.utc) - A_DAY).timestamp()
    with progress_bar(f"querying {counted(len(targets), 'node')}", len(targets)) as advance:
        responses = query_actions_done_as_root(
            targets, connect, begin, timeout=timeout, progress=lambda node_actions: advance(1)
        )
    silent = [node_actions for node_actions in responses if node_actions.error]
    if as_json:
        print_json(
            "diagnose",
            {
                "since": begin,
                "nodes": [
                    {
                        "instance_id": node_actions.target.instance_id,
                        "group": node_actions.target.group,
                        "error": node_actions.error,
                        "actions": [asdict(action) for action in node_actions.actions],
                    }
                    for node_actions in responses
                ],
            },
        )
        if silent:
            return 1
        return 0
    lines = [
        (action.at, f"{node_actions.target.group} {node_actions.target.instance_id}  {action.to_line()}")
        for node_actions in responses
        for action in node_actions.actions
    ]
    for _, line in sorted(lines):
        print_text(line)
    for node_actions in silent:
        print_to_stderr(
            f"{node_actions.target.group} {node_actions.target.instance_id} could not be queried: {node_actions.error}"
        )
    print_to_stderr(
        f"{counted(len(lines), 'action')} on {len(responses) - len(silent)} of {len(responses)} nodes since "
        f"{datetime.fromtimestamp(begin, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    )
    if silent:
        return 1
    return 0
