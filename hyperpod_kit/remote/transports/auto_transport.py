"""The way that works, found by asking: over ssh, by way of the controller, by SSM sessions, by what nodes have sent.

A way that is closed says nothing of the nodes behind it; a node that is silent where its neighbours answer is silent.
So ways are told open or closed by instance group, and what nodes sent by themselves, which may be minutes old, counts
only where no way leads to any node now.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Callable, Mapping, Sequence

from hyperpod_kit.errors import Absent, AwsError, Unreachable, UsageError
from hyperpod_kit.remote.target import NodeTarget, sample_per_group
from hyperpod_kit.remote.transports.transport import NodeResponse, Progress, Transport
from hyperpod_kit.untrusted.text import counted


@dataclass(frozen=True)
class TransportOption:
    """One of the ways. `name`: its word of --via; `description`: what it is, for a sentence.

    open: the transport, given the ids of those that have answered so far; raises UsageError, AwsError or Unreachable
    where there is none. sample: how many nodes of each group are asked before the rest is, 0 for all at once. late:
    whether the answers are of an earlier moment.
    """

    name: str
    description: str
    open: Callable[[frozenset[str]], Transport]
    sample: int = 0
    late: bool = False


class AutoTransport:
    """A transport over others, the first that is open for each instance group. `say`: takes which ones those are."""

    description = "by the first transport that works"

    def __init__(self, ways: Sequence[TransportOption], say: Callable[[str], None]) -> None:
        self._ways, self._say = tuple(ways), say
        self._reported = ""

    def query_mount_reports(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """Query the nodes, each group by the first way that is open (see Transport).

        Raises Unreachable where none of the ways can be tried.
        """
        responses: dict[str, NodeResponse] = {}
        failed: dict[str, list[tuple[TransportOption, NodeResponse]]] = {target.instance_id: [] for target in targets}
        closed: dict[str, str] = {}
        remaining = list(targets)
        tried = False
        for way in self._ways:
            if not remaining or (way.late and responses):
                continue
            try:
                transport = way.open(frozenset(responses))
                batch = _query_by_sample(transport, way, remaining, progress)
            except (Absent, UsageError, AwsError, Unreachable) as err:
                closed[way.description] = err.message
                continue
            tried = True
            groups = {target.group for target in remaining if batch[target.instance_id].reached}
            for target in remaining:
                response = batch[target.instance_id]
                if target.group in groups:
                    responses[target.instance_id] = replace(response, via=way.name)
                else:
                    failed[target.instance_id].append((way, response))
            silent = [target for target in remaining if target.group not in groups]
            if silent:
                closed[way.description] = batch[silent[0].instance_id].error
                progress(-len(silent))
            remaining = silent
        if targets and not tried:
            raise Unreachable(
                f"no transport reaches the nodes: {_join_reasons(closed)}",
                hint="use --via to choose one; validate-mounts --help describes them",
            )
        progress(len(remaining))
        self._say_ways_if_changed(
            [responses[target.instance_id].via for target in targets if target.instance_id in responses], closed
        )
        return [
            responses.get(target.instance_id) or _unreached_response(failed[target.instance_id]) for target in targets
        ]

    def _say_ways_if_changed(self, taken: Sequence[str], closed: Mapping[str, str]) -> None:
        """Say how many nodes were reached by which way and which ways are closed, unless that was the last message."""
        descriptions = {way.name: way.description for way in self._ways}
        parts = [f"{counted(count, 'node')} by {descriptions[name]}" for name, count in Counter(taken).items()]
        message = "no node was reached"
        if parts:
            message = f"asked: {', '.join(parts)}"
        if closed:
            message += f"; closed: {_join_reasons(closed)}"
        if message != self._reported:
            self._say(message)
            self._reported = message


def _query_by_sample(
    transport: Transport, way: TransportOption, targets: Sequence[NodeTarget], progress: Progress
) -> dict[str, NodeResponse]:
    """Return instance id -> response. Where `way` has a sample, the rest of a group is queried only if a node of
    the sample was reached; else they get the response of the sample."""
    if not way.sample:
        return _responses_by_id(targets, transport.query_mount_reports(targets, progress))
    first = sample_per_group(targets, way.sample)
    responses = _responses_by_id(first, transport.query_mount_reports(first, progress))
    groups = {target.group for target in first if responses[target.instance_id].reached}
    rest = [target for target in targets if target.instance_id not in responses]
    more = [target for target in rest if target.group in groups]
    if more:
        responses.update(_responses_by_id(more, transport.query_mount_reports(more, progress)))
    of_group = {target.group: responses[target.instance_id] for target in first}
    for target in rest:
        if target.group not in groups:
            responses[target.instance_id] = replace(of_group[target.group], hint="")
            progress(1)
    return responses


def _responses_by_id(targets: Sequence[NodeTarget], responses: Sequence[NodeResponse]) -> dict[str, NodeResponse]:
    return {target.instance_id: response for target, response in zip(targets, responses)}


def _unreached_response(responses: Sequence[tuple[TransportOption, NodeResponse]]) -> NodeResponse:
    """Make the response of a node that no way has led to."""
    if len(responses) == 1:
        return responses[0][1]
    causes = "; ".join(f"{way.description}: {response.error}" for way, response in responses)
    hint = next((response.hint for _, response in responses if response.hint), "")
    return NodeResponse(error=f"no transport reached it: {causes}", hint=hint, reached=False)


def _join_reasons(closed: Mapping[str, str]) -> str:
    return "; ".join(f"{description}: {reason}" for description, reason in closed.items())
