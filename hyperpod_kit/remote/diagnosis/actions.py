"""What was done on the nodes with root's rights to what is another's: asked of each, read as any other's words are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.model.actions import LONGEST, MOST, Action
from hyperpod_kit.remote.connect.fan_out import query_all, reason_to_skip
from hyperpod_kit.remote.report_parser import parse_json_after_banner
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed, Runner
from hyperpod_kit.untrusted.text import clean_one_line

TEXT_FIELDS = ("action", "on", "owner", "why", "asked_by", "unit")


@dataclass(frozen=True)
class NodeActions:
    """One node's actions, oldest first. error: why it could not be asked or understood, "" when it was."""

    target: NodeTarget
    actions: tuple[Action, ...] = ()
    error: str = ""


def query_actions_done_as_root(
    targets: Sequence[NodeTarget],
    connect: Callable[[NodeTarget], Runner],
    since: float,
    *,
    timeout: float = 60.0,
    progress: Callable[[NodeActions], None] = lambda actions: None,
) -> list[NodeActions]:
    """Query the actions of each node since a time, all nodes at once; a node that cannot be queried has an
    error."""

    def query_one(target: NodeTarget) -> NodeActions:
        skipped = reason_to_skip(target)
        if skipped:
            return NodeActions(target, error=skipped.error)
        command = ["hyperpod-kit", "node", "actions", "--json", f"--since=@{int(since)}"]
        try:
            runner = connect(target)
            response = runner.run(command, timeout=timeout, check=False)
            if response.returncode == 1:
                # Who may log in may not read the journal everywhere; who administers may become root.
                response = runner.run(["sudo", "-n", *command], timeout=timeout, check=False)
            return parse_actions_response(target, response)
        except HyperpodKitError as err:
            return NodeActions(target, error=err.message)
        except Exception as err:  # whatever one node says, the others are told of
            return NodeActions(target, error=f"its answer cannot be read: {type(err).__name__}: {clean_one_line(err)}")

    return query_all(list(targets), query_one, progress)


def parse_actions_response(target: NodeTarget, response: Completed) -> NodeActions:
    """Parse a node's response."""
    if response.returncode == 2:
        return NodeActions(
            target, error="its release does not support actions: install the bundle of this release on it"
        )
    if response.returncode != 0:
        return NodeActions(target, error=clean_one_line(response.stderr) or f"exit code {response.returncode}")
    try:
        entries = parse_json_after_banner(response.stdout)["actions"]
        if not isinstance(entries, list):
            raise ValueError(f"its actions are of type {type(entries).__name__}, expected a list")
    except (ValueError, KeyError) as err:
        return NodeActions(target, error=f"its answer cannot be read: {clean_one_line(err)}")
    return NodeActions(target, tuple(parse_action(entry) for entry in entries[-MOST:] if isinstance(entry, dict)))


def parse_action(raw: dict[str, Any]) -> Action:
    """Parse one action of a node, with its texts cleaned; 0.0 for a time that is none."""
    at = raw.get("at")
    good = isinstance(at, (int, float)) and not isinstance(at, bool) and math.isfinite(at) and 0 <= at < 1e11
    moment = 0.0
    if good and at is not None:
        moment = float(at)
    return Action(moment, *(clean_one_line(raw.get(name, ""), LONGEST) for name in TEXT_FIELDS))
