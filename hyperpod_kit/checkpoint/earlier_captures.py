"""What earlier starts of the run have left beside the root: restored from, or given up, once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from hyperpod_kit.checkpoint import candidates, peek, restore, room, telling
from hyperpod_kit.checkpoint.agent.control_page import Key
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import RestoreCompleted
from hyperpod_kit.checkpoint.candidate_run import NearerTiers
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.keeper import AgentKeeper
from hyperpod_kit.checkpoint.repository import catalog, proofs, selection
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.restore_progress import Hear
from hyperpod_kit.checkpoint.results import Fresh, Peeked, Restored
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.startup import StartIdentity
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.errors import CheckpointError, HyperpodKitError


class EarlierCaptures:
    """The captures of all ranks in memory and in `local` on their nodes' disks; a restore may take `threads` cores.

    Whoever settles what becomes of them tells the agent, which frees all but the one that was restored from.
    """

    def __init__(
        self, ranks: Ranks, start: StartIdentity, agent: AgentKeeper, pool: SlotPool, *, local: str | None, threads: int
    ) -> None:
        """A collective."""
        self._ranks, self._start, self._agent, self._pool = ranks, start, agent, pool
        self._local, self._threads = local, threads
        self._held = ranks.gather(candidates.here(pool.slots, local, start.run.run_id, ranks.rank))
        self._settled = False

    @property
    def is_settled(self) -> bool:
        """Whether a restore or a save has come by already."""
        return self._settled

    @property
    def keys(self) -> list[Key]:
        return [held.key for own in self._held for held in own]

    def restore(self, state: State, progress: Hear | None, epoch: int, attempt: str | None = None) -> Restored | Fresh:
        """See Manager.restore. `epoch`: of this start."""
        with self._failure_told():
            outcome = restore.restore(
                self._ranks,
                open_store(self._start.root),
                state,
                nearer=self._nearer,
                held=self._held,
                told=self._told(attempt),
                only=attempt,
                before=lambda: room.check(self._ranks, self._pool.folder, state.model, self._pool.count),
                progress=progress,
                epoch=epoch,
            )
        if self._ranks.rank == 0:
            telling.restored(self._start.root, outcome.got)
            if isinstance(outcome.got, Restored) and outcome.got.tier == candidates.STORAGE:
                proofs.record_where_possible(open_store(self._start.root), outcome.got.attempt, "restore")
        self._settle(outcome.keep)
        return outcome.got

    def peek(self, only: str | None) -> Peeked | None:
        """See Manager.peek."""
        with self._failure_told():
            return peek.peek(
                self._ranks,
                open_store(self._start.root),
                nearer=self._nearer,
                held=self._held,
                told=self._told(only),
                only=only,
            )

    def _told(self, attempt: str | None) -> candidates.ResumeFrom:
        told = candidates.ResumeFrom.read(os.environ, self._start.root)
        return told if attempt is None else candidates.from_attempt(attempt, near=told.near and not self._settled)

    @property
    def _nearer(self) -> NearerTiers:
        return NearerTiers(self._start.run.run_id, self._pool.slots, self._local, self._threads)

    @contextlib.contextmanager
    def _failure_told(self) -> Iterator[None]:
        """Errors go to the `job run` above as well."""
        try:
            yield
        except HyperpodKitError as err:
            if self._ranks.rank == 0:
                telling.failed(self._start.root, err)
            if isinstance(err, telling.AGREED):
                # Slurm kills a step whose first rank fails: rank 0 must have said why before any of them does.
                self._ranks.gather(None)
            raise

    def pass_over(self) -> None:
        """Before a save: where nothing was restored there must be nothing to restore. Raises CheckpointError."""
        if self._settled:
            return
        root = self._start.root
        store = open_store(root)
        if any(self._held) or catalog.newest_committed(store) is not None or selection.lost_commits(store):
            raise CheckpointError(f"{root} holds checkpoints of this run", hint="call restore() before save()")
        self._settle(None)

    def _settle(self, keep: Key | None) -> None:
        self._settled = True
        self._agent.send(RestoreCompleted(keep, candidates.LOCAL if self._local else candidates.MEMORY))
