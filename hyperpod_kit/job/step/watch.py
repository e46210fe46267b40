"""Watches over a step that srun still shows as running: for nodes that are gone, nodes without the checkpoint root, and
output that does not move."""

from __future__ import annotations

import os
import stat
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.job.records.state_place import RECORDS_DIRECTORY
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.slurm.reach import OPEN, REFUSED, UNASKED, probe_tcp_ports

STARTING = 3
"""How many times the limit a start may take of which nothing is known but its output."""

_MOST_ELAPSED = 5.0
"""Seconds that one look counts for at most: a `job run` that was stopped (`scontrol suspend`) has seen nothing."""

_OUTAGE = 2.0
"""Seconds to list a directory, beyond which the file system counts as away."""

Address = Tuple[str, int]
Reach = Callable[[Mapping[str, Address], float], Dict[str, str]]


class NodeWatch:
    """Probes the slurmd of every node of the step. Times are seconds.

    A machine that answers nothing for `silent_after` is lost. One that refuses the connection is up and its slurmd is
    not: that is also how a restart of slurmd looks, which a step survives, so it gets `refused_after`.
    A node that could not be probed, for lack of a descriptor on this side, is neither well nor lost. `doubted`: every
    node that has ever failed to answer; `unasked`: those that the last probe could not reach for that reason.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        *,
        interval: float = 5.0,
        silent_after: float = 6.0,
        refused_after: float = 30.0,
        probe: Reach = probe_tcp_ports,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = dict(addresses)
        self._interval = interval
        self._patience = {REFUSED: refused_after}
        self._silent_after = silent_after
        self._probe = probe
        self._clock = clock
        self._bad_since: Dict[str, float] = {}
        self.doubted: Set[str] = set()
        self.unasked: Tuple[str, ...] = ()
        self._next = clock() + interval

    @classmethod
    def of(cls, addresses: Mapping[str, Address], used: Sequence[str], options: RunOptions) -> Optional[NodeWatch]:
        """Return the watch over the nodes of a step, all when none is named; None when slurmctld did not say where
        their slurmds are."""
        if not addresses:
            return None
        return cls(
            {name: address for name, address in addresses.items() if not used or name in used},
            interval=options.probe_interval,
            silent_after=options.silent_after,
            refused_after=options.refused_after,
        )

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self._addresses)

    @property
    def seconds_until_next_probe(self) -> float:
        """Seconds until the next probe."""
        return max(0.0, self._next - self._clock())

    def probe_if_due_and_list_lost(self) -> List[str]:
        """Probe where that is due, and return the nodes that are lost by now, none where it is not."""
        if self._clock() < self._next:
            return []
        return self.probe()

    def probe(self) -> List[str]:
        """Probe all nodes now, and return those that are lost by now."""
        answers = self._probe(self._addresses, 2.0)
        now = self._clock()
        lost = []
        self.unasked = tuple(sorted(name for name, port_state in answers.items() if port_state == UNASKED))
        for name, port_state in answers.items():
            if port_state in (OPEN, UNASKED):
                self._bad_since.pop(name, None)
                continue
            self.doubted.add(name)
            since = self._bad_since.setdefault(name, now)
            if now - since >= self._patience.get(port_state, self._silent_after):
                lost.append(name)
        delay = self._interval
        if self._bad_since:
            # A suspect is probed more often than a node that is well.
            delay = min(1.0, self._interval)
        self._next = now + delay
        return sorted(lost)

    def replace_addresses_after_relaunch(self, addresses: Mapping[str, Address]) -> None:
        """Watch these nodes from now on, as the step has been started again on them."""
        self._addresses = dict(addresses)
        self._bad_since.clear()
        self.doubted.clear()

    @property
    def suspects(self) -> List[str]:
        """Nodes that did not answer the last probe."""
        return sorted(self._bad_since)


_REQUESTS = 5.0
"""Seconds at least between two requests for the names in a root in S3."""


class OutputWatch:
    """Watches a program that reports no steps: it hangs when there was nothing new in the job's output and nothing new
    under the checkpoint root for `limit` seconds; 0: never.

    Until the first sign of life the limit is three times as long: imports and a restore print nothing.
    """

    def __init__(self, limit: float, root: str, fd: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._root = root
        self._fd = fd
        self._clock = clock
        self._store: Optional[Store] = None
        self._names: List[str] = []
        self._listed_at: Optional[float] = None
        self._snapshot = self._first_snapshot()
        self._silent, self._last_check = 0.0, clock()
        self._starting = True

    @property
    def limit(self) -> float:
        """Seconds that a silence may last now."""
        if self._starting:
            return self._limit * STARTING
        return self._limit

    def stalled(self) -> bool:
        """Look at the output and the root, and return whether their silence has reached the limit."""
        if not self._limit:
            return False
        check_start = self._clock()
        snapshot = self._progress()
        now = self._clock()
        elapsed, self._last_check = now - self._last_check, now
        # A file system that kept us waiting has kept the ranks waiting too: that is an outage and no stall.
        if snapshot != self._snapshot or now - check_start > _OUTAGE:
            self._starting = self._starting and snapshot == self._snapshot
            self._snapshot, self._silent = snapshot, 0.0
        else:
            self._silent += min(elapsed, _MOST_ELAPSED, self._limit / 4)
        return self._silent >= self.limit

    def restart(self) -> None:
        """Begin anew, as the ranks have been started again, or have only now ceased to report steps."""
        self._snapshot, self._silent, self._starting = self._first_snapshot(), 0.0, True
        self._last_check = self._clock()

    def _first_snapshot(self) -> Optional[Tuple[object, ...]]:
        """Return the progress so far; None where nothing is watched."""
        if not self._limit:
            return None
        return self._progress()

    def _progress(self) -> Tuple[object, ...]:
        """Return what changes whenever the job prints or saves something. Our own lines come only between attempts."""
        marks: List[object] = [self._output_size()]
        try:
            if is_path(self._root):
                marks += self._saved()
            else:
                marks += self._objects()
        except (CheckpointError, OSError):
            marks.append(None)
        return tuple(marks)

    def _output_size(self) -> Optional[int]:
        """Return the bytes of the job's output; None where it is no regular file."""
        try:
            status = os.fstat(self._fd)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return status.st_size

    def _saved(self) -> List[object]:
        with os.scandir(self._root) as entries:
            return [
                *sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name != RECORDS_DIRECTORY)
            ]

    def _objects(self) -> List[object]:
        """Return the names of the checkpoints, listed only a few times within the limit, as each request costs."""
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= max(_REQUESTS, self._limit / 8):
            if not self._store:
                self._store = open_store(self._root)
            self._names, self._listed_at = list(self._store.list()), now
        return list(self._names)


class AwayWatch:
    """Finds the nodes of the step on which the checkpoint root does not answer, although it does here.

    When it does not answer here either, that is an outage for all: nothing is ended for it, as a file system that is
    back lets the ranks go on where they are.
    """

    def __init__(
        self, answers: Callable[[], bool], *, patience: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._answers = answers
        self._patience = patience
        self._clock = clock
        self._since: Dict[str, float] = {}

    @property
    def seconds_until_next_look(self) -> Optional[float]:
        """Seconds until the next look; None while no node complains."""
        if not self._since:
            return None
        return 1.0

    def lost(self, complaining: Sequence[str]) -> List[str]:
        """Return the nodes that have complained for `patience` seconds, in all of which the root answered here."""
        if complaining and not self._answers():
            complaining = ()
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in complaining}
        return sorted(name for name, since in self._since.items() if now - since >= self._patience)


def wait_until_suspects_answer_or_lost(
    watch: Optional[NodeWatch],
    limit: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Sequence[str]:
    """Wait until every suspect has answered or been given up, `limit` seconds at most, and return the lost nodes.

    It is called after a step has failed.
    """
    if watch is None:
        return []
    end = clock() + limit
    lost = watch.probe()
    while set(watch.suspects) - set(lost) and clock() < end:
        sleep(max(0.05, min(watch.seconds_until_next_probe, end - clock())))
        lost = watch.probe()
    return lost
