"""Save and restore, from the training loop's side."""

from __future__ import annotations

import datetime
import os
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Literal

import torch.distributed as dist

from hyperpod_kit.checkpoint import (
    cadence,
    candidates,
    capture,
    codec,
    comparing,
    copier,
    device,
    load,
    restore,
    startup,
)
from hyperpod_kit.checkpoint.fence import Fence, Flight
from hyperpod_kit.checkpoint.handle import Handle
from hyperpod_kit.checkpoint.ranks import Ranks
from hyperpod_kit.checkpoint.repository import catalog, control, policy
from hyperpod_kit.checkpoint.repository.control import Key, Page
from hyperpod_kit.checkpoint.repository.lines import Message
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.results import Fresh, Restored
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.snapshot import Piece, Snapshot
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.errors import CheckpointError, StateNotSerializable
from hyperpod_kit.slurm.progress import Teller

_POLL_SECONDS = 0.01
_RELEASE_SECONDS = 2.0
_KEEP = policy.Latest(3)

OnBusy = Literal["skip", "wait", "replace"]


class Manager:
    """The checkpoints of one run under `root`; made by every rank, after init_process_group if there is one.

    `run` names the run (default: what the root already says, else the root's last component). `slots` captures fit
    into shared memory per rank. With `overlap` a save returns while threads still copy, and every optimizer of the
    state waits for them before its step. `every` is the cadence of `step`: steps, or a time. `keep` says which
    checkpoints stay on storage, None: all of them. `local` is a directory on the node's own disk, `rate_limit` bytes a
    second of writing to storage while training goes on. `compare`: at every so many saves, at the first one, and where
    `on_busy` is "wait", ranks digest what they hold together with others, and a save whose ranks differ is refused; it
    costs reading all of it once. None: the rank that writes a tensor is believed. `algorithm` is the digest of the
    shards, see `repository.digest`.
    Raises RunIsOwned, CheckpointError, OSError; the same kind on all ranks.
    """

    def __init__(self, root: str | os.PathLike[str], *, run: str | None = None, slots: int = 2, overlap: bool = False,
                 every: int | datetime.timedelta | None = None, keep: policy.Policy | None = _KEEP,
                 local: str | os.PathLike[str] | None = None, rate_limit: int | None = None,
                 compare: int | None = 10, process_group: dist.ProcessGroup | None = None,
                 algorithm: str | None = None) -> None:
        if slots < 2:
            raise ValueError("slots must be at least 2: the newest sealed copy is never written over")
        self._ranks = Ranks(process_group)
        self._cadence = cadence.Cadence(every, self._ranks)
        self._changed = threading.Condition()
        self._handles: dict[int, Handle] = {}
        self._agent_error: str | None = None
        self._released = 0
        self._plan: capture.Plan | None = None
        self._parent: dict[str, int] | None = None  # the save or the restored checkpoint before the next save
        self._settled = False
        self._seq = 0
        self._overlap = overlap
        self._progress = Teller()
        self.skipped = 0
        self._start = startup.identify(self._ranks, root, run, algorithm)
        self._comparing = comparing.Comparing(compare, self._start.algorithm)
        self.root, self.run, self.algorithm = self._start.root, self._start.run.run, self._start.algorithm
        self._pool = SlotPool(self._start.run.run_id, self._ranks.rank, slots)
        self._cores = copier.cores(self._start.ranks_here)
        self._copier = copier.Copier(self._cores)
        load.warm(self.algorithm)
        self._devices = device.Devices()
        self._fence = Fence()
        self._local = os.path.abspath(local) if local is not None else None
        options: Message = {"local": self._local, "rate_limit": rate_limit, "keep": keep.to_json() if keep else None}
        self._agent = startup.start_agent(self._ranks, self._start, options, self._on_event)
        run_id, rank = self._start.run.run_id, self._ranks.rank
        self._pool.attach()
        self._held: list[list[candidates.Held]] = self._ranks.gather(
            candidates.here(self._pool.slots, self._local, run_id, rank))
        self._claim_epoch()
        if self._unclaimed:
            warnings.warn(f"nothing can be saved: {self._unclaimed}; what is there can be restored", RuntimeWarning,
                          stacklevel=2)

    def _claim_epoch(self) -> None:
        """A collective. Where the root cannot be written, the epoch is still to be claimed by the next save."""
        near = [held.key for own in self._held for held in own]
        self.epoch, seq, self._unclaimed = startup.agree_epoch(self._ranks, self._start, near)
        self._seq = max(self._seq, seq)

    # --- restore ------------------------------------------------------------------------------------------------

    def restore(self, state: State) -> Restored | Fresh:
        """Bring `state` to the newest checkpoint that all ranks can prove, from memory when it is there.

        HPK_RESUME_FROM (the decision of `hyperpod-kit job run`) names the attempt to try first, unless memory has a
        newer one (HPK_RESUME_MEMORY=0: from storage only, neither memory nor `local`); `none` means that nothing was
        found. Fresh only when nothing was ever committed. What is newer and cannot be restored by these ranks (it was
        never committed and other ranks captured it, or one has lost its part) is named in `rejected`.
        Raises NoValidCheckpoint with a reason for each candidate, DigestUnavailable, StorageUnreadable (an I/O error is
        no reason to go back), CheckpointError when the state does not fit. All ranks call it, and all get the same.
        """
        self._fence.drain()
        told = os.environ.get("HPK_RESUME_FROM") or None
        outcome = restore.restore(
            self._ranks, open_store(self.root), state, run_id=self._start.run.run_id, held=self._held,
            slots=self._pool.slots, threads=self._cores, local=self._local, first=None if told == "none" else told,
            near=os.environ.get("HPK_RESUME_MEMORY") != "0")
        self._settle(outcome.keep)
        if isinstance(outcome.got, Restored):
            self._parent = {"seq": outcome.got.seq, "step": outcome.got.step}
        state.when_complete(self._prepare)
        return outcome.got

    def _settle(self, keep: Key | None) -> None:
        self._settled = True
        self._agent.send(op="settle", keep=list(keep) if keep else None, tier="local" if self._local else "memory")

    def _prepare(self, state: State) -> None:
        """Make and fault in the slots while training goes on; the first save finds them."""
        try:
            snapshot = state.snapshot(self._ranks)
        except StateNotSerializable:
            return  # the first save says so
        self._pool.prepare(lambda: (self._plan_of(snapshot).layout, len(codec.text_of(snapshot.tree))),
                           pin=any(device.is_on(piece.tensor) for piece in snapshot.pieces))

    # --- save ---------------------------------------------------------------------------------------------------

    def step(self, step: int, state: State, *, metrics: Mapping[str, float] | None = None) -> Handle | None:
        """Save if it is time to, by `every`; None when it is not. Every rank calls it after each step.

        When the agent has ended it is time at once, and raises as `save` does: a step is not trained unprotected for
        as long as the cadence is. `hyperpod-kit job status` knows from it how far a rank came.
        """
        self._progress.reached(step)
        if not self._cadence.due(step) and self._agent_error is None:
            return None
        return self.save(step, state, metrics=metrics)

    def save(self, step: int, state: State, *, on_busy: OnBusy = "skip",
             metrics: Mapping[str, float] | None = None) -> Handle:
        """Copy the state into shared memory and return; all the rest happens behind training's back.

        `step` is the step just completed. Every rank calls it for the same steps, with the same `on_busy`. There is no
        collective and no waiting for storage here, unless the root could not be written when the run started: then
        each save asks once more. When no slot is free, the handle says `skipped` and training goes on. With "wait" (for
        a last save) it waits for a slot instead, and compares (see `compare`); with "replace" an older save that is
        whole in memory, but not yet being written to storage, is dropped for this one. `metrics` are kept with the
        checkpoint.
        Raises StateNotSerializable (a value that is neither a tensor nor typed JSON), NotEnoughSharedMemory,
        CheckpointError when a checkpoint is there that was not restored, and when the agent has ended: the state is
        then in memory where a slot was free, and a new start takes it from there. Training on would be unprotected.
        """
        begin = time.perf_counter()
        self._progress.reached(step)
        if on_busy not in ("skip", "wait", "replace"):
            raise ValueError(f"on_busy is {on_busy!r}, expected 'skip', 'wait' or 'replace'")
        self._fence.drain()
        if not self._settled:
            if any(self._held) or any(entry.committed for entry in catalog.attempts(self.root)):
                raise CheckpointError(f"{self.root} holds checkpoints of this run", hint="call restore() before save()")
            self._settle(None)
        if self._unclaimed:
            self._claim_epoch()
        snapshot = state.snapshot(self._ranks)
        snapshot.tree["save"] = {"parent": self._parent,
                                 "metrics": {name: float(value) for name, value in (metrics or {}).items()}}
        self._seq += 1
        handle = Handle(step, self._seq, self._changed)
        with self._changed:
            self._handles = {seq: held for seq, held in self._handles.items() if not held.final}
            self._handles[self._seq] = handle
        if self._unclaimed:
            self._end(handle, "failed", self._unclaimed)
            return handle
        flight = self._capture(step, snapshot, handle, on_busy)
        if flight is not None and self._overlap and self._fence.watch(state.optimizers):
            self._fence.hold(flight, handle)
        elif flight is not None:
            flight.wait()
        if flight is not None:
            self._parent = {"seq": handle.seq, "step": step}
        handle.stall_ms = (time.perf_counter() - begin) * 1000.0
        if self._agent_error is not None:
            raise CheckpointError(f"no save can reach storage any more: {self._agent_error}",
                                  hint="start again: the newest step that all ranks have in memory is restored")
        return handle

    def fence(self) -> None:
        """Wait until the weights may change: what an overlapped save still reads is copied. An optimizer of the state
        calls it before its step; call it before changing the weights in another way."""
        self._fence.wait()

    def _plan_of(self, snapshot: Snapshot) -> capture.Plan:
        plan = self._plan
        if plan is None or not plan.fits(snapshot):
            plan = self._plan = capture.Plan(snapshot, rank=self._ranks.rank, world=self._ranks.world,
                                             run_id=self._start.run.run_id, algorithm=self.algorithm)
        return plan

    def _capture(self, step: int, snapshot: Snapshot, handle: Handle, on_busy: OnBusy) -> Flight | None:
        """Begin the copy into a slot; None when none is free."""
        self._pool.planned()
        plan = self._plan_of(snapshot)
        extra = codec.text_of(snapshot.tree)
        compared = self._comparing.begin(handle.seq, plan.fingerprint, snapshot.pieces, last=on_busy == "wait")
        room = len(extra) + (compared.room if compared is not None else 0)
        target = self._pool.acquire(plan.layout, room)
        if target is None:
            target = self._make_room(plan, handle, room, on_busy)
        if target is None:
            self._comparing.heard(handle.seq, "skipped")
            self._agent.send(op="skipped", key=self._key(handle), why="no slot was free")
            self._end(handle, "skipped", "no slot was free: earlier saves are still on their way to storage")
            return None
        start = self._start
        page = Page(rank=self._ranks.rank, world=self._ranks.world, epoch=self.epoch, seq=handle.seq, step=step,
                    incarnation=start.incarnation, run=self.run, run_id=start.run.run_id, root=self.root,
                    owner=start.owner, job=dict(start.job))
        target.begin(plan.page(page, extra), extra)
        try:
            return self._fly(target, [snapshot.pieces[n] for n in plan.mine], handle, compared)
        except BaseException:
            if target.slot.page is not None and target.slot.page.state == control.WRITING:
                target.end(control.FREE)
            raise

    def _fly(self, target: capture.Target, pieces: list[Piece], handle: Handle,
             compared: comparing.Comparison | None) -> Flight:
        early, late, far = target.split(pieces)
        transfers = self._devices.start([(target.views[piece.spec.name], piece.tensor, piece.early) for piece in far
                                         if piece.spec.name in target.views],
                                        compared.folds() if compared is not None else ())
        first, rest = target.work(early), target.work(late)
        if compared is not None:
            first, rest = first + compared.work(early=True), rest + compared.work(early=False)

        def finish(error: BaseException | None) -> None:
            self._finish(target, handle, error, compared)
        if self._overlap:
            self._copier.start(first).wait()
            return Flight(self._copier, rest, transfers, finish, background=True)
        return Flight(self._copier, rest + first, transfers, finish, background=False)

    def _finish(self, target: capture.Target, handle: Handle, error: BaseException | None,
                compared: comparing.Comparison | None) -> None:
        """The copy has ended, in whatever thread."""
        if error is not None:
            target.end(control.FREE)
            with self._changed:
                handle.become("failed", f"the copy failed: {error}")
            # Afterwards: the agent's answer is that this save was dropped, and an end is never left.
            self._agent.send(op="skipped", key=self._key(handle), why=f"the copy failed: {error}")
            return
        target.end(control.CAPTURED, compared.held() if compared is not None else None)
        with self._changed:
            handle.become("captured")
        self._agent.send(op="captured", slot=target.slot.name.slot)

    def _make_room(self, plan: capture.Plan, handle: Handle, extra: int, on_busy: OnBusy) -> capture.Target | None:
        if on_busy == "skip":
            return None
        end = time.monotonic() + (_RELEASE_SECONDS if on_busy == "replace" else float("inf"))
        asked = self._released
        if on_busy == "replace":
            self._agent.send(op="release", key=self._key(handle))
        target = None
        while target is None and self._agent_error is None and time.monotonic() < end:
            answered = self._released != asked
            target = self._pool.acquire(plan.layout, extra)
            if target is None and on_busy == "replace" and answered:
                return None
            if target is None:
                with self._changed:
                    # Woken by every event; slots are freed a moment after the event, hence the short time.
                    self._changed.wait(_POLL_SECONDS)
        return target

    def _key(self, handle: Handle) -> list[int | str]:
        return [self.epoch, handle.seq, self._start.incarnation]

    def _end(self, handle: Handle, state: str, reason: str) -> None:
        with self._changed:
            self.skipped += state == "skipped"
            handle.become(state, reason)
        warnings.warn(f"save of step {handle.step}: {state}: {reason}", RuntimeWarning, stacklevel=4)

    def _on_event(self, message: Message) -> None:
        with self._changed:
            kind = message["ev"]
            if kind in ("fatal", "ended"):
                self._agent_error = message.get("why", "the checkpoint agent has ended")
                for handle in self._handles.values():
                    handle.become("failed", self._agent_error)
                self._changed.notify_all()
                return
            if kind == "released":
                self._released += 1
                self._changed.notify_all()
                return
            key = message["key"]
            if kind == "which":
                self._agent.send(op="which", key=key, tensors=self._comparing.tensors(int(key[1]), message["holders"]))
                return
            self._comparing.heard(int(key[1]), kind)
            handle_ = self._handles.get(int(key[1])) if key[2] == self._start.incarnation else None
            if handle_ is None:
                return
            if kind == "durable":
                handle_.attempt = message["note"]
            handle_.become(kind, message.get("note") if kind in ("failed", "dropped") else None)

    # --- end ----------------------------------------------------------------------------------------------------

    def close(self, drain: float = 60.0) -> bool:
        """End normally: wait up to `drain` seconds until every save is durable and the agent has cleaned up.

        False when the time was not enough (the agent then goes on alone), the agent died, or a save failed.
        """
        self._fence.close()
        self._copier.close()
        self._pool.close()
        self._agent.send(op="close")
        done = self._agent.wait_end(drain)
        if not done:
            warnings.warn(f"saves were not durable after {drain:g} s; the agent (pid {self._agent.pid}) goes on",
                          RuntimeWarning, stacklevel=2)
        with self._changed:
            return done and self._agent.clean and not any(h.state == "failed" for h in self._handles.values())

