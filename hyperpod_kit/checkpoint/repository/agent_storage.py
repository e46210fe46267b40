"""The agent's dealings with storage, each as a job for a worker."""

from __future__ import annotations

from typing import Callable, Dict, Mapping, Optional

from . import assemble, catalog, commit, persist, verify
from .agent_captures import Held
from .assemble import Report


class Storage:
    """The root that this run writes to. `stopped`: the agent has to leave everything as it is and go."""

    def __init__(self, root: str, *, versions: Dict[str, str], rate_limit: Optional[float],
                 stopped: Callable[[], bool]) -> None:
        self.root = root
        self.pace = persist.Pace(rate_limit)
        self._versions = versions
        self._stopped = stopped

    def write(self, held: Held) -> Callable[[], Report]:
        """Write this rank's shard; what is to be said about it."""
        def job() -> Report:
            if not held.begin():
                raise persist.Stopped("withdrawn before it was begun")
            folder = commit.make_attempt(self.root, held.attempt)
            record = persist.write_shard(held.sealing, folder, pace=self.pace,
                                         stopped=lambda: self._stopped() or held.ended)
            page = held.sealing.page
            return Report(page, record, held.sealing.slot.extra(page.extra_size).decode())
        return job

    def look(self, held: Held) -> Callable[[], str]:
        """The attempt in which this capture is committed already; "" when there is none.

        A start that was killed between the manifest and the mark in shared memory leaves it so.
        """
        def job() -> str:
            page = held.sealing.page
            for entry in catalog.attempts(self.root):
                if entry.committed and (entry.name.epoch, entry.name.seq) == (page.epoch, page.seq):
                    found = verify.read_manifest(self.root, entry.attempt)
                    if found.shards[page.rank].root == page.shard_root:
                        return entry.attempt
            return ""
        return job

    def commit(self, held: Held, reports: Mapping[int, Report]) -> Callable[[], str]:
        """Make a checkpoint of what all ranks have written; its attempt."""
        def job() -> str:
            made, extra = assemble.assemble(reports, self._versions)
            commit.commit(self.root, held.attempt, made, extra)
            return held.attempt
        return job
