"""Save and restore, from the training loop's side."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import warnings
from typing import Any, Literal

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import candidates, capture, restore
from hyperpod_kit.checkpoint.agent_link import AgentLink
from hyperpod_kit.checkpoint.handle import Handle
from hyperpod_kit.checkpoint.ranks import Ranks
from hyperpod_kit.checkpoint.repository import catalog, commit, digest, process
from hyperpod_kit.checkpoint.repository.control import Key, Page
from hyperpod_kit.checkpoint.repository.lines import Message
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.results import Fresh, Restored
from hyperpod_kit.checkpoint.snapshot import Snapshot
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.errors import CheckpointError

_START_SECONDS = 120.0
_POLL_SECONDS = 0.01


class Manager:
    """The checkpoints of one run under `root`; made by every rank, after init_process_group if there is one.

    `run` names the run (default: what the root already says, else the root's last component). `slots` captures fit
    into shared memory per rank. `algorithm` is the digest of the shards, see `repository.digest`.
    Raises RunIsOwned, CheckpointError, OSError; the same kind on all ranks.
    """

    def __init__(self, root: str | os.PathLike[str], *, run: str | None = None, slots: int = 2,
                 process_group: dist.ProcessGroup | None = None, agent: Literal["auto"] = "auto",
                 algorithm: str | None = None) -> None:
        if slots < 2:
            raise ValueError("slots must be at least 2: the newest sealed copy is never written over")
        if agent != "auto":
            raise ValueError(f"agent is {agent!r}, expected 'auto'")
        self.root = os.path.abspath(os.fspath(root))
        self.algorithm = algorithm or os.environ.get("HPK_DIGEST") or digest.DEFAULT
        self._ranks = Ranks(process_group)
        self._changed = threading.Condition()
        self._handles: dict[int, Handle] = {}
        self._agent_error: str | None = None
        self._plan: capture.Plan | None = None
        self._settled = False
        self.skipped = 0
        identity, self._incarnation, token = self._agreed_identity(run)
        self.run, self._run_id = identity
        self._owner = process.myself()
        self._job = {key: os.environ[name] for key, name in
                     (("slurm_job_id", "SLURM_JOB_ID"), ("restart", "SLURM_RESTART_COUNT"), ("attempt", "HPK_ATTEMPT"))
                     if name in os.environ}
        self._pool = capture.SlotPool(self._run_id, self._ranks.rank, slots)
        self._start_agent(token)
        self._pages: list[list[Page]] = self._ranks.gather(candidates.sealed_pages(self._run_id, self._ranks.rank))
        self.epoch, self._seq = self._agreed_epoch()

    # --- start --------------------------------------------------------------------------------------------------

    def _agreed_identity(self, run: str | None) -> tuple[commit.RunIdentity, str, str]:
        """Rank 0 opens the root for all. Raises what it raised, everywhere."""
        answer: Any = None
        if self._ranks.rank == 0:
            try:
                digest.algorithm(self.algorithm)
                answer = (commit.open_root(self.root, run), secrets.token_hex(3), secrets.token_hex(16))
            except (CheckpointError, OSError) as err:
                answer = err
        answer = self._ranks.broadcast(answer)
        if isinstance(answer, Exception):
            raise answer
        identity, incarnation, token = answer
        return commit.RunIdentity(*identity), incarnation, token

    def _start_agent(self, token: str) -> None:
        hosts = self._ranks.gather(socket.gethostname())
        setup: Message = {
            "root": self.root, "run_id": self._run_id, "rank": self._ranks.rank, "world": self._ranks.world,
            "incarnation": self._incarnation, "token": token, "owner": list(self._owner),
            "local": len(set(hosts)) == 1, "versions": {"torch": torch.__version__}}
        error: Exception | None = None
        port = 0
        try:
            self._agent = AgentLink(setup, self._on_event)
            port = self._agent.wait_ready(_START_SECONDS)
        except (CheckpointError, OSError) as err:
            error = err
        errors = [found for found in self._ranks.gather(error) if found is not None]
        if errors:
            raise errors[0]
        addresses = [[host, port] for host in _addresses(hosts)] if self._ranks.rank == 0 else []
        self._agent.send(op="connect", addresses=self._ranks.broadcast(addresses))

    def _agreed_epoch(self) -> tuple[int, int]:
        """(this start's epoch, the highest seq so far): rank 0 claims it above everything that it can see."""
        hot = [(page.epoch, page.seq) for held in self._pages for page in held]
        answer: Any = None
        if self._ranks.rank == 0:
            try:
                seq = max([catalog.highest(self.root)[1]] + [s for _, s in hot])
                identity = commit.RunIdentity(self.run, self._run_id)
                above = max([e for e, _ in hot], default=0)
                epoch = commit.claim_epoch(self.root, identity, above=above, job=self._job, first_seq=seq + 1)
                answer = (epoch, seq)
            except (CheckpointError, OSError) as err:
                answer = err
        answer = self._ranks.broadcast(answer)
        if isinstance(answer, Exception):
            raise answer
        return int(answer[0]), int(answer[1])

    # --- restore ------------------------------------------------------------------------------------------------

    def restore(self, state: State) -> Restored | Fresh:
        """Bring `state` to the newest checkpoint that all ranks can prove, from memory when it is there.

        HPK_RESUME_FROM (the decision of `hyperpod-kit job run`) names the attempt to try first, unless memory has a
        newer one (HPK_RESUME_MEMORY=0: not from memory); `none` means that nothing was found. Fresh only when nothing
        was ever committed.
        Raises NoValidCheckpoint with a reason for each candidate, DigestUnavailable, CheckpointError when the state
        does not fit. All ranks call it, and all get the same.
        """
        told = os.environ.get("HPK_RESUME_FROM") or None
        told = self._ranks.broadcast(None if told == "none" else told)
        pages = self._pages if self._ranks.broadcast(os.environ.get("HPK_RESUME_MEMORY")) != "0" else []
        outcome = restore.restore(self._ranks, open_store(self.root), state, run_id=self._run_id, pages=pages,
                                  first=told)
        self._settle(outcome.keep)
        return outcome.got

    def _settle(self, keep: Key | None) -> None:
        self._settled = True
        self._agent.send(op="settle", keep=list(keep) if keep else None)

    # --- save ---------------------------------------------------------------------------------------------------

    def save(self, step: int, state: State, *, on_busy: Literal["skip", "wait"] = "skip") -> Handle:
        """Copy the state into shared memory and return; all the rest happens behind training's back.

        `step` is the step just completed. Every rank calls it for the same steps. There is no collective and no
        waiting for storage here: when no slot is free, the handle says `skipped` and training goes on. With
        `on_busy="wait"` (for a last save) it waits for a slot instead; all ranks must say the same.
        Raises StateNotSerializable (a value that is neither a tensor nor typed JSON), NotEnoughSharedMemory,
        CheckpointError when a checkpoint is there that was not restored, and when the agent has ended: the state is
        then in memory where a slot was free, and a new start takes it from there. Training on would be unprotected.
        """
        begin = time.perf_counter()
        if not self._settled:
            if any(self._pages) or any(entry.committed for entry in catalog.attempts(self.root)):
                raise CheckpointError(f"{self.root} holds checkpoints of this run", hint="call restore() before save()")
            self._settle(None)
        snapshot = state.snapshot(self._ranks)
        self._seq += 1
        handle = Handle(step, self._seq, self._changed)
        with self._changed:
            self._handles = {seq: held for seq, held in self._handles.items() if not held.final}
            self._handles[self._seq] = handle
        self._capture(step, snapshot, handle, wait=on_busy == "wait")
        handle.stall_ms = (time.perf_counter() - begin) * 1000.0
        if self._agent_error is not None:
            raise CheckpointError(f"no save can reach storage any more: {self._agent_error}",
                                  hint="start again: the newest step that all ranks have in memory is restored")
        return handle

    def _capture(self, step: int, snapshot: Snapshot, handle: Handle, *, wait: bool) -> None:
        plan = self._plan
        if plan is None or not plan.fits(snapshot):
            plan = self._plan = capture.Plan(snapshot, rank=self._ranks.rank, world=self._ranks.world,
                                             run_id=self._run_id, algorithm=self.algorithm)
        extra = json.dumps(snapshot.tree, separators=(",", ":"), allow_nan=False).encode()
        slot = self._pool.acquire(plan.layout, len(extra))
        while slot is None and wait and self._agent_error is None:
            with self._changed:
                # Woken by every event; slots are freed a moment after the event, hence the short time.
                self._changed.wait(_POLL_SECONDS)
            slot = self._pool.acquire(plan.layout, len(extra))
        if slot is None:
            self._agent.send(op="skipped", key=[self.epoch, handle.seq, self._incarnation], why="no slot was free")
            self._end(handle, "skipped", "no slot was free: earlier saves are still on their way to storage")
            return
        page = capture.page_for(
            plan, rank=self._ranks.rank, world=self._ranks.world, epoch=self.epoch, seq=handle.seq, step=step,
            incarnation=self._incarnation, run=self.run, run_id=self._run_id, root=self.root, owner=self._owner,
            job=dict(self._job), algorithm=self.algorithm, extra=extra)
        self._pool.fill(slot, plan, snapshot, page, extra)
        self._agent.send(op="captured", slot=slot.name.slot)

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
                return
            key = message["key"]
            handle_ = self._handles.get(int(key[1])) if key[2] == self._incarnation else None
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
        self._agent.send(op="close")
        done = self._agent.wait_end(drain)
        if not done:
            warnings.warn(f"saves were not durable after {drain:g} s; the agent (pid {self._agent.pid}) goes on",
                          RuntimeWarning, stacklevel=2)
        with self._changed:
            return done and self._agent.clean and not any(h.state == "failed" for h in self._handles.values())


def _addresses(hosts: list[str]) -> list[str]:
    """Where the other ranks may reach rank 0's agent, best first."""
    if len(set(hosts)) == 1:
        return ["127.0.0.1"]
    found = [socket.gethostname()]
    for host in sorted(set(hosts) - set(found)):
        # The address from which this node would talk to the other one; connecting UDP sends nothing.
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))
                found.insert(0, probe.getsockname()[0])
                break
        except OSError:
            continue
    return found


