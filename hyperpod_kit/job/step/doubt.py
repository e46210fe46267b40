"""Judge many nodes that fall silent at once: likelier than their deaths is one cause on this side, so slurmctld is
asked.

A batch host whose network is gone finds every node silent, and would end a step that trains. What slurmctld counts as
lost is lost. As long as it does not answer, the fault is here, and to end the step could not be ordered anyway. Where
it answers and has heard all of them, they get more time: it notices by itself only after minutes (SlurmdTimeout).
"""

from __future__ import annotations

import time
from typing import Callable, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control

FEW = 3
"""So many nodes may be lost at once without a query: a rack's share of a small job."""

PATIENCE = 60.0
"""Seconds for which nodes that slurmctld has heard may stay silent here."""

_AGAIN = 5.0
"""Seconds between two queries."""

DownNodesQuery = Callable[[Sequence[str]], Optional[Set[str]]]
"""Which of these nodes slurmctld counts as lost; None when it does not answer."""


def make_query_of_down_nodes(runner: Runner) -> DownNodesQuery:
    """Return the query that asks the running Slurm."""

    def query_down_nodes(names: Sequence[str]) -> Optional[Set[str]]:
        try:
            record_by_node = control.query_known_nodes(runner, names)
        except (RunError, ValueError):
            return None
        return {name for name in names if name not in record_by_node or record_by_node[name].is_down}

    return query_down_nodes


class Doubt:
    """Judges what a watch over `nodes` nodes takes for lost. `doubted`: nodes that are silent and not given up."""

    def __init__(
        self, nodes: int, query_down_nodes: DownNodesQuery, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = max(FEW, nodes // 4)
        self._query_down_nodes = query_down_nodes
        self._clock = clock
        self._heard_since: Optional[float] = None
        self._last_query_time: Optional[float] = None
        self._has_queued_message = False
        self._news: List[str] = []
        self.doubted: FrozenSet[str] = frozenset()

    def lost(self, suspected: Sequence[str], silent: Sequence[str]) -> Tuple[str, ...]:
        """Return the nodes that are lost for sure. `suspected`: those that the watch takes for lost after a look;
        `silent`: all that did not answer that look."""
        if len(silent) <= self._most:
            self._heard_since = None
            self._last_query_time = None
            self._has_queued_message = False
            self.doubted = frozenset()
            return tuple(suspected)
        self.doubted = frozenset(silent)
        now = self._clock()
        if not suspected or (self._last_query_time is not None and now - self._last_query_time < _AGAIN):
            return ()
        self._last_query_time = now
        confirmed = self._query_down_nodes(suspected)
        if confirmed is None:
            self._heard_since = None
            self._queue_message_once(
                silent, "slurmctld does not answer either: that is this node's network, and nothing is ended"
            )
            return ()
        if self._heard_since is None:
            self._heard_since = now
        if confirmed:
            return tuple(sorted(confirmed))
        if now - self._heard_since >= PATIENCE:
            return tuple(suspected)
        self._queue_message_once(silent, f"slurmctld counts none of them as lost: they get {PATIENCE:g} s")
        return ()

    def _queue_message_once(self, silent: Sequence[str], explanation: str) -> None:
        if not self._has_queued_message:
            self._has_queued_message = True
            self._news.append(f"{len(silent)} nodes, such as {min(silent)}, are silent at once; {explanation}")

    def news(self) -> Iterable[str]:
        """Return the messages that no earlier call has returned."""
        messages, self._news = self._news, []
        return messages
