"""Save and restore, from the training loop's side."""

from __future__ import annotations

import datetime
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import (
    ambient,
    arguments,
    begun_loaders,
    candidates,
    copier,
    load,
    opened,
    room_on_root,
    save_schedule,
    startup,
)
from hyperpod_kit.checkpoint.agent.channel import JsonMessage
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import Close
from hyperpod_kit.checkpoint.collectives import Ranks
from hyperpod_kit.checkpoint.comparing import Comparing
from hyperpod_kit.checkpoint.earlier_captures import EarlierCaptures
from hyperpod_kit.checkpoint.handle import Handle, SaveState
from hyperpod_kit.checkpoint.hearing import Hearing
from hyperpod_kit.checkpoint.numbering import Numbering
from hyperpod_kit.checkpoint.one_caller import OneCaller
from hyperpod_kit.checkpoint.own_policy import OwnPolicy
from hyperpod_kit.checkpoint.partner_link import PartnerLink
from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.restore_progress import Hear, also_told
from hyperpod_kit.checkpoint.results import Fresh, Peeked, Restored
from hyperpod_kit.checkpoint.saves import Saves, log
from hyperpod_kit.checkpoint.slots import SlotPool
from hyperpod_kit.checkpoint.staging import OnBusy, Staging
from hyperpod_kit.checkpoint.state import State
from hyperpod_kit.checkpoint.warned import AGAIN, Warned
from hyperpod_kit.errors import CheckpointError, StateNotSerializable
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import Teller
from hyperpod_kit.system import data_wait

_REST_SECONDS = 30.0
_LOOK = 1.0
_KEEP = policy.Latest(3)
_SLOTS = 2


class Manager:
    """The checkpoints of one run under `root`; made by every rank, after init_process_group if there is one.

    `run` names the run (default: what the root already says, else the root's last component). `slots` captures fit into
    shared memory per rank (default: 2, or 3 with `storage_every`). With `overlap` a save returns while threads still
    copy, and every optimizer of the state waits for them before its step. `every` is the schedule of `step`: steps, or
    a time; with `storage_every`, another such, only the saves that are due by that one go to storage, and the others
    stay in memory. `keep` says which checkpoints stay on storage, None: all of them; a class of your own that derives
    `Policy` is asked in rank 0's process. `local` is a directory on the node's own disk, `rate_limit` bytes a second of
    writing to storage while training goes on. `compare`: at every so many saves, at the first one, and where `on_busy`
    is "wait", ranks digest what they hold together with others, and a save whose ranks differ is refused; it costs
    reading all of it once. None: the rank that writes a tensor is believed. `algorithm` is the digest of the shards,
    see `repository.digest`. `max_lost`: after so many saves in a row that failed or were dropped, the next `save` or
    `step` raises; None: it never does (the warnings stay). Saves that were skipped since earlier ones are on their way
    do not count for it. `partners`: each capture is copied to another node's memory, from which the ranks of a lost
    node go on. `save_on_signal`: SIGUSR1 or SIGTERM to any rank makes `step` save on all of them, wait until that is
    durable and end the process with 75, with which `hyperpod-kit job run` starts the job again; made in the main thread
    then, and what heard these signals before hears them after `close`. Without it they do what they did.

    `with Manager(root) as manager:` closes at the end of the block and raises when the newest save is not durable; when
    the block raises, nothing is waited for: the agent goes on alone, as after the death of the process.
    Raises RunIsOwned, CheckpointError, OSError; the same kind on all ranks.
    """

    @ambient.without_modes_around
    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str | None = None,
        slots: int | None = None,
        overlap: bool = False,
        every: int | datetime.timedelta | None = None,
        storage_every: int | datetime.timedelta | None = None,
        keep: policy.Policy | None = _KEEP,
        local: str | os.PathLike[str] | None = None,
        rate_limit: int | None = None,
        compare: int | None = 10,
        process_group: dist.ProcessGroup | None = None,
        algorithm: str | None = None,
        max_lost: int | None = 10,
        partners: bool = False,
        save_on_signal: bool = False,
    ) -> None:
        slots = (_SLOTS if storage_every is None else _SLOTS + 1) if slots is None else slots
        if slots < _SLOTS:
            raise ValueError(f"slots must be at least {_SLOTS}: the newest sealed copy is never written over")
        self._ranks = Ranks(process_group)
        warned = Warned(self._ranks, wanted=save_on_signal)
        self._cadences = save_schedule.Cadences(every, storage_every, self._ranks, warned)
        self._progress = Teller(waited=data_wait.LOOP.read)
        self._saves = Saves(os.fspath(root), max_lost, waiting=self._progress.moved)
        self._caller = OneCaller()
        self._closed: bool | None = None
        self._start = startup.identify(self._ranks, root, run, algorithm)
        room_on_root.check(self._ranks, self._start.root, keep)
        comparing = Comparing(compare, self._start.algorithm)
        threads = copier.cores(self._start.ranks_here)
        load.warm(self._start.algorithm)
        directory = os.path.abspath(local) if local is not None else None
        by_agent = keep.to_json() if keep is not None and policy.is_data(keep) else None
        options: JsonMessage = {"local": directory, "rate_limit": rate_limit, "keep": by_agent, "partners": partners}
        own = OwnPolicy(self._start, None if by_agent or self._ranks.rank else keep)
        self._hearing = Hearing(self._start.incarnation, self._saves, comparing, self._progress, own)
        self._agent = startup.start_agent(self._ranks, self._start, options, self._hearing.hear)
        pool = SlotPool(self._start.run.run_id, self._ranks.rank, slots, folder=self._agent.folder)
        if partners:
            PartnerLink(self._ranks, self._start, self._agent).fetch()
        pool.attach()
        self._earlier = EarlierCaptures(self._ranks, self._start, self._agent, pool, local=directory, threads=threads)
        self._staging = Staging(
            self._start.origin(self._ranks),
            self._start.algorithm,
            pool=pool,
            threads=threads,
            saves=self._saves,
            agent=self._agent,
            comparing=comparing,
            overlap=overlap,
            waiting=self._progress.moved,
        )
        try:
            self._numbering = Numbering(self._ranks, self._start, self._earlier.keys)
        except BaseException:
            self._agent.let_go()
            raise
        warned.listen()
        opened.enter(self)
        if self._numbering.unclaimed:
            warnings.warn(
                f"nothing can be saved: {self._numbering.unclaimed}; what is there can be restored",
                RuntimeWarning,
                stacklevel=3,  # the caller of the Manager, whose constructor is called through `ambient`
            )

    @property
    def root(self) -> str:
        """Where the checkpoints lie."""
        return self._start.root

    @property
    def run(self) -> str:
        """The run's name."""
        return self._start.run.run

    @property
    def ranks(self) -> Ranks:
        """This process among the ranks of the run."""
        return self._ranks

    @property
    def algorithm(self) -> str:
        """The digest of the shards."""
        return self._start.algorithm

    @property
    def epoch(self) -> int:
        """The number of this start below the root."""
        return self._numbering.epoch

    # --- restore ------------------------------------------------------------------------------------------------

    def restore(self, state: State, *, attempt: str | None = None, progress: Hear | None = None) -> Restored | Fresh:
        """Bring `state` to the newest checkpoint that all ranks can prove, from memory when it is there.

        All ranks call it, and all get the same.

        HPK_RESUME_FROM (the decision of `hyperpod-kit job run`) names the attempt to try first, unless memory has a
        newer one (HPK_RESUME_MEMORY=0: from storage only, neither memory nor `local`) or this very attempt of the job
        (HPK_ATTEMPT) has committed a newer one; `none` means that nothing was found. Fresh only when nothing was ever
        committed, which the manifests and all other records of a commit have to agree on, or when a person said so
        (`hyperpod-kit job run --fresh`; HPK_FRESH=1 where nothing can be restored). What is newer and cannot be
        restored by these ranks (it was never committed and other ranks captured it, or one has lost its part) is named
        in `rejected`.

        Args:
            state: What to fill.
            attempt: The name of a committed checkpoint, as `hyperpod-kit checkpoint ls` lists it: this one is restored
                and no other, whatever HPK_RESUME_FROM says. The saves that follow are newer than all that is there.
                Newer checkpoints stay on storage; what is newer and only in memory is given up. Every start that
                passes the name goes back to it: `hyperpod-kit job run --from` does so once, and `job rewind` for all
                starts to come. Also in the midst of training, to go back from a loss that is nan.
            progress: Called with a `RestoreProgress` of this rank, about every half second from a thread that reads,
                and at the end.

        Returns:
            What was restored, or `Fresh`; never `Fresh` with `attempt`.

        Raises:
            NoValidCheckpoint: With a reason for each candidate that is damaged or lost.
            DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
            StorageUnreadable: An I/O error that lasts is no reason to go back.
            StateNotSerializable: For a value that no checkpoint can hold; one that an optimizer makes: in its first
                step.
            CheckpointError: The state does not fit, `attempt` is not there or ranks name different ones, a loader of
                the state was iterated before the first restore, another thread saves, or Slurm started this step
                without a decision that `HPK_CHECKPOINT_ROOT` asks for.
        """
        self._mine()
        with self._caller.alone("restore"), ambient.without_modes():
            return self._restore(state, attempt, progress)

    def _restore(self, state: State, attempt: str | None, progress: Hear | None) -> Restored | Fresh:
        if not self._earlier.is_settled:
            self._agree(begun_loaders.problem(state.objects))
        self._staging.fence.drain()
        # What is made for a state must be usable by a training step, wherever the restore is called.
        with self._progress.phase(Phase.RESTORE), torch.inference_mode(False):
            progress = also_told(self._progress.moved, progress)
            found = self._earlier.restore(state, progress, self._numbering.epoch, attempt)
        if isinstance(found, Restored):
            self._numbering.follow(found.seq, found.step)
            self._numbering.descend(found.line)
            if found.tier == candidates.STORAGE:
                self._saves.found(found.seq, found.step)
        self._check(state)
        # An optimizer that waits for its first step is no reason to keep a Manager that the program has lost.
        prepare = weakref.WeakMethod(self._prepare)

        def complete(state: State) -> None:
            method = prepare()
            if method is not None:
                method(state)

        state.when_complete(complete)
        self._progress.begins(found.next_step)
        return found

    @ambient.without_modes_around
    def peek(self, attempt: str | None = None) -> Peeked | None:
        """What the newest checkpoint, or `attempt`, says beside its tensors, before there is a state; None when nothing
        was ever committed. Changes nothing, and costs no tier of the `restore` that follows.

        Only the beginning of the checkpoint is proved: compare its `attempt` with what `restore` returns. Raises as
        `restore` does. All ranks call it, before `restore`, and all get the same.
        """
        self._mine()
        return self._earlier.peek(attempt)

    def _check(self, state: State) -> None:
        """Raises StateNotSerializable, on all ranks, for what no save could take: no step is trained for nothing."""
        problem: StateNotSerializable | None = None
        try:
            state.check(self._ranks)
        except StateNotSerializable as err:
            problem = err
        self._agree(problem)

    def _agree(self, problem: CheckpointError | None) -> None:
        """Raises the problem of this rank, else that of another one. A collective."""
        others = [found for found in self._ranks.gather(problem) if found is not None]
        if problem is not None or others:
            raise problem or others[0]

    def _prepare(self, state: State) -> None:
        """Make and fault in the slots while training goes on; the first save finds them. Raises StateNotSerializable
        for what an optimizer has made in its first step."""
        self._staging.prepare(state.tensors(self._ranks))

    # --- save ---------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> int:
        """How many saves found no free slot."""
        return self._saves.skipped

    def step(self, step: int, state: State, *, metrics: Mapping[str, Any] | None = None) -> Handle | None:
        """Save if it is time to, by `every`; None when it is not. Every rank calls it after each step.

        When saves cannot reach storage it is time at once, and raises as `save` does: a step is not trained unprotected
        until the schedule says so. `hyperpod-kit job status` knows from it how far a rank came.
        Raises SystemExit(75) after a signal, see `save_on_signal`.
        """
        self._mine()
        step = arguments.step_of(step)
        self._progress.reached(step)
        self._saves.speak(2)
        if self._cadences.warned.came():
            self._save(step, state, "wait", arguments.metrics_of(metrics), "storage")
            self.close()
            raise SystemExit(AGAIN)
        tier = self._cadences.due(step)
        if tier is None and self._saves.trouble is None:
            return None
        return self._save(step, state, "skip", arguments.metrics_of(metrics), tier or "storage")

    def reached(self, step: int) -> bool:
        """For loops that decide themselves when to save, after each step: `hyperpod-kit job status` and its watch for
        jobs that do not move know from it how far this rank came. False when saves cannot reach storage: save at once,
        which raises, with the state in memory. After it `ending` says whether to save and end.
        """
        self._mine()
        self._progress.reached(arguments.step_of(step))
        self._cadences.warned.came()
        self._saves.speak(2)
        return self._saves.trouble is None

    def evaluation(self) -> AbstractContextManager[None]:
        """`with manager.evaluation():` around an evaluation between two steps: the watch for jobs that hang gives it
        more time than a step, and does not count it as one."""
        self._mine()
        return self._progress.phase(Phase.EVALUATION)

    @property
    def ending(self) -> bool:
        """With `save_on_signal`: whether a signal had come to any rank by the last `reached`. The same on all ranks:
        save with on_busy="wait", close, and end with exit code 75."""
        return self._cadences.warned.found

    def save(
        self,
        step: int,
        state: State,
        *,
        on_busy: OnBusy = "skip",
        metrics: Mapping[str, Any] | None = None,
        tier: save_schedule.Tier = "storage",
    ) -> Handle:
        """Copy the state into shared memory and return; all the rest happens behind training's back.

        `step` is the step just completed, an integer of any type. Every rank calls it for the same steps, with the same
        `on_busy` and `tier`. With the tier "memory" it stays there, sealed and restored as others, until a newer save
        is in memory on all ranks; the newest is brought to storage when a trainer ends or dies, by `close`, and on
        SIGTERM and SIGUSR1. There is no collective and no waiting for storage here, unless the root could not be
        written when the run started: then each save asks once more. When no slot is free, the handle says `skipped` and
        training goes on. With "wait" (for a last save) it waits for a slot instead, and compares (see `compare`); with
        "replace" an older save that is whole in memory, but not yet being written to storage, is dropped for this one.
        `metrics` are kept with the checkpoint: real numbers of any type, nan and infinities too. Saves that came to
        nothing meanwhile are warned about.
        Raises TypeError for another step or metric, StateNotSerializable (a value that is neither a tensor nor typed
        JSON), NotEnoughSharedMemory, RunIsOwned when a newer start has taken the root (on all ranks, from the save on
        that found it), CheckpointError when a checkpoint is there that was not restored, and when saves cannot reach
        storage (the agent has ended or stands still, `max_lost` saves in a row came to nothing): the state is then in
        memory where a slot was free, and a new start takes it from there.
        """
        self._mine()
        step = arguments.step_of(step)
        self._progress.reached(step)
        if on_busy not in ("skip", "wait", "replace"):
            raise ValueError(f"on_busy is {on_busy!r}, expected 'skip', 'wait' or 'replace'")
        if tier not in save_schedule.TIERS:
            raise ValueError(f"tier is {tier!r}, expected 'storage' or 'memory'")
        return self._save(step, state, on_busy, arguments.metrics_of(metrics), tier)

    def _save(
        self,
        step: int,
        state: State,
        on_busy: OnBusy,
        metrics: dict[str, float | str],
        tier: save_schedule.Tier,
    ) -> Handle:
        with self._progress.phase(Phase.SAVE), self._caller.alone("save"), ambient.without_modes():
            begin = time.perf_counter()
            if self._saves.taken is not None and self._saves.trouble is not None:
                raise self._saves.trouble
            self._staging.fence.drain()
            self._earlier.pass_over()
            if self._numbering.unclaimed:
                self._numbering.claim()
            tensors = state.tensors(self._ranks)
            tensors.tree["save"] = {
                "parent": self._numbering.parent,
                "line": self._numbering.line,
                "metrics": metrics,
            }
            handle = self._saves.new(step, self._numbering.epoch, self._numbering.next_seq(), tier)
            if self._numbering.unclaimed:
                self._saves.lose(handle, SaveState.FAILED, self._numbering.unclaimed)
            elif self._staging.stage(tensors, handle, on_busy, state.optimizers):
                self._numbering.follow(handle.seq, step)
            handle.stall_ms = (time.perf_counter() - begin) * 1000.0
            self._saves.speak(3)
            trouble = self._saves.trouble
            if trouble is not None:
                raise trouble
            return handle

    def fence(self) -> None:
        """Wait until the weights may change: what an overlapped save still reads is copied. An optimizer of the state
        calls it before its step; call it before changing the weights in another way."""
        self._staging.fence.wait()

    def _mine(self) -> None:
        """Raises CheckpointError unless this process made the Manager and it is open."""
        if not self._caller.is_here:
            raise CheckpointError(
                f"process {os.getpid()} was forked from process {self._caller.pid}, whose Manager this is",
                hint="save, restore and close in the process that made the Manager",
            )
        if self._closed is not None:
            raise CheckpointError(f"this Manager of {self.root} is closed", hint="make a new one and restore")

    # --- end ----------------------------------------------------------------------------------------------------

    def close(self, drain: float | None = None) -> bool:
        """End normally: wait until every save is durable and the agent has cleaned up, as long as bytes move, or for
        `drain` seconds at most.

        True when the newest save that was asked for is durable, or none was asked for. False when it was skipped,
        dropped or failed, when the time was not enough or storage hangs (the agent then goes on alone), or when the
        agent died.
        """
        if self._closed is not None and self._caller.is_here:
            return self._closed
        self._mine()
        self._progress.enter(Phase.CLOSE)
        self._cadences.warned.let_go()
        self._staging.close()
        self._agent.send(Close())
        begin = time.monotonic()
        done = self._agent.wait_end(_LOOK if drain is None else drain)
        while not done and drain is None and self._saves.stalled is None:
            self._progress.moved()  # the agent itself says when nothing moves
            done = self._agent.wait_end(_LOOK)
        if not done:
            waited, why = time.monotonic() - begin, self._saves.stalled
            self._saves.say(
                f"saves were not durable after {waited:.0f} s{f' ({why})' if why else ''}; "
                f"the agent (pid {self._agent.pid}) goes on"
            )
        self._hearing.own_policy.close()
        self._closed = done and self._agent.clean and self._saves.all_safe
        opened.leave(self)
        newest = self._saves.newest
        if newest is not None and done and not self._saves.all_safe:
            self._saves.say(f"the newest save, of step {newest.step}, is not durable: {newest.state}: {newest.reason}")
        self._saves.speak(2)
        self._progress.enter(Phase.OVER)
        return self._closed

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises CheckpointError at the normal end of the block when `close` is False."""
        if self._closed is not None or not self._caller.is_here:
            return
        if kind is None or issubclass(kind, SystemExit):
            if not self.close() and kind is None:
                raise CheckpointError(
                    f"the newest save is not durable: {self._saves.newest!r}",
                    hint="start again: the newest step that all ranks have in memory is restored",
                )
            return
        # Other ranks may be far behind or gone: nothing is waited for, and memory is left for the next start.
        self.rest()
        self._cadences.warned.let_go()
        self._closed = False
        self._staging.let_go()
        self._agent.let_go()
        opened.leave(self)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """A notebook that runs a cell again, or deletes the name, has lost it: the next Manager of the root closes it.
        Its saves go on meanwhile."""
        if is_ending():
            return  # the modules are gone
        if getattr(self, "_closed", False) is None and self._caller.is_here:
            opened.forget(self)

    def rest(self) -> None:
        """Let no thread of this Manager be inside torch any more; called before the interpreter ends."""
        self._staging.rest(_REST_SECONDS)
        if self.protects and not self._saves.all_safe:
            log.warning("no close(): %r; the agent (pid %d) goes on alone", self._saves.newest, self._agent.pid)

    @property
    def protects(self) -> bool:
        """Whether saves still go anywhere: the agent has not ended."""
        return self._closed is None and self._saves.agent_error is None

    def leave_to_parent(self) -> None:
        """This process was forked from the Manager's: the agent must not take it for the trainer."""
        self._agent.leave_to_parent()
