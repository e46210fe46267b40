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
from hyperpod_kit.remote.target import NodeTarget, sample_of
from hyperpod_kit.remote.transport import NodeResponse, Progress, Transport


@dataclass(frozen=True)
class ReportWay:
    """One of the ways. `name`: its word of --via; `words`: what it is, for a sentence.

    open: the transport, given the ids of those that have answered so far; raises UsageError, AwsError or Unreachable
    where there is none. sample: how many nodes of each group are asked before the rest is, 0 for all at once. late:
    whether the answers are of an earlier moment.
    """

    name: str
    words: str
    open: Callable[[frozenset[str]], Transport]
    sample: int = 0
    late: bool = False


class AnyWay:
    """A transport over others, the first that is open for each instance group. `say`: takes which ones those are."""

    words = "by the way that is open"

    def __init__(self, ways: Sequence[ReportWay], say: Callable[[str], None]) -> None:
        self._ways, self._say = tuple(ways), say
        self._said = ""

    def query(self, targets: Sequence[NodeTarget], progress: Progress) -> list[NodeResponse]:
        """As Transport. Raises Unreachable where none of the ways can be tried."""
        found: dict[str, NodeResponse] = {}
        failed: dict[str, list[tuple[ReportWay, NodeResponse]]] = {target.instance_id: [] for target in targets}
        closed: dict[str, str] = {}
        left = list(targets)
        tried = False
        for way in self._ways:
            if not left or (way.late and found):
                continue
            try:
                transport = way.open(frozenset(found))
                answers = _asked(transport, way, left, progress)
            except (Absent, UsageError, AwsError, Unreachable) as err:
                closed[way.words] = err.message
                continue
            tried = True
            groups = {target.group for target in left if answers[target.instance_id].reached}
            for target in left:
                answer = answers[target.instance_id]
                if target.group in groups:
                    found[target.instance_id] = replace(answer, via=way.name)
                else:
                    failed[target.instance_id].append((way, answer))
            silent = [target for target in left if target.group not in groups]
            if silent:
                closed[way.words] = answers[silent[0].instance_id].error
                progress(-len(silent))
            left = silent
        if targets and not tried:
            raise Unreachable(
                f"no way leads to the nodes: {_listed(closed)}",
                hint="--via names one to insist on; docs/validate-mounts.md has what each needs",
            )
        progress(len(left))
        self._tell([found[target.instance_id].via for target in targets if target.instance_id in found], closed)
        return [found.get(target.instance_id) or _unheard(failed[target.instance_id]) for target in targets]

    def _tell(self, taken: Sequence[str], closed: Mapping[str, str]) -> None:
        words = {way.name: way.words for way in self._ways}
        told = [f"{count} node{'s' * (count != 1)} by {words[name]}" for name, count in Counter(taken).items()]
        said = f"asked: {', '.join(told)}" if told else "no node was reached"
        said += f"; closed: {_listed(closed)}" if closed else ""
        if said != self._said:
            self._say(said)
            self._said = said


def _asked(
    transport: Transport, way: ReportWay, targets: Sequence[NodeTarget], progress: Progress
) -> dict[str, NodeResponse]:
    """Instance id -> answer; where only a sample was asked and nobody of it reached, that is the answer of all."""
    if not way.sample:
        return _by_id(targets, transport.query(targets, progress))
    first = sample_of(targets, way.sample)
    answers = _by_id(first, transport.query(first, progress))
    groups = {target.group for target in first if answers[target.instance_id].reached}
    rest = [target for target in targets if target.instance_id not in answers]
    more = [target for target in rest if target.group in groups]
    if more:
        answers.update(_by_id(more, transport.query(more, progress)))
    of_group = {target.group: answers[target.instance_id] for target in first}
    for target in rest:
        if target.group not in groups:
            answers[target.instance_id] = replace(of_group[target.group], hint="")
            progress(1)
    return answers


def _by_id(targets: Sequence[NodeTarget], responses: Sequence[NodeResponse]) -> dict[str, NodeResponse]:
    return {target.instance_id: response for target, response in zip(targets, responses)}


def _unheard(answers: Sequence[tuple[ReportWay, NodeResponse]]) -> NodeResponse:
    """Of a node that no way has led to."""
    if len(answers) == 1:
        return answers[0][1]
    told = "; ".join(f"{way.words}: {answer.error}" for way, answer in answers)
    hint = next((answer.hint for _, answer in answers if answer.hint), "")
    return NodeResponse(error=f"no way has led to it: {told}", hint=hint, reached=False)


def _listed(closed: Mapping[str, str]) -> str:
    return "; ".join(f"{words}: {why}" for words, why in closed.items())
