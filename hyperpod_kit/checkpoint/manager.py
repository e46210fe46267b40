"""Save and restore, from the training loop's side.

A training program makes one `Manager` per rank and calls its `restore`, `step` or `save`, and `close`. They delegate to
`startup` (what the ranks agree on), `recovered_snapshots` (what can be restored), `staging` (the copy) and `saves` (the
handles).
"""

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
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

# Annotations name its classes as `checkpoint.State`: they are imported once `typing.get_type_hints` asks for them.
from hyperpod_kit import checkpoint
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import Close
from hyperpod_kit.checkpoint.agent.shm.node_tiers import STORAGE
from hyperpod_kit.checkpoint.agent.wire.channel import JsonMessage
from hyperpod_kit.checkpoint.agent_client import open_managers, startup
from hyperpod_kit.checkpoint.capture import root_capacity
from hyperpod_kit.checkpoint.capture.replica_check import ReplicaCheck
from hyperpod_kit.checkpoint.capture.save_ids import SaveIds
from hyperpod_kit.checkpoint.codec import ambient
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.run import started_loaders
from hyperpod_kit.checkpoint.run.agent_event_handler import AgentEventHandler
from hyperpod_kit.checkpoint.run.caller_guard import CallerGuard
from hyperpod_kit.checkpoint.saves import arguments, save_schedule
from hyperpod_kit.checkpoint.saves.handle import Handle, SaveState
from hyperpod_kit.checkpoint.saves.preemption_signal import REQUEUE_EXIT_CODE, PreemptionSignal
from hyperpod_kit.checkpoint.saves.saves import Saves, log
from hyperpod_kit.errors import CheckpointError, StateNotSerializable
from hyperpod_kit.renamed import renamed_arguments, renamed_fields
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import ProgressWriter
from hyperpod_kit.system import data_wait

if TYPE_CHECKING:
    from hyperpod_kit.checkpoint.run.user_policy import UserPolicy
    from hyperpod_kit.checkpoint.state.tensors import StateTensors

_REST_SECONDS = 30.0
_POLL_SECONDS = 1.0
_KEEP = policy.Latest(3)
_SLOTS = 2


@renamed_fields(peek="inspect")
class Manager:
    """Save and restore the checkpoints of one run.

    Every rank makes one, after `init_process_group` if there is one: the constructor is a collective. It starts an
    agent, a process beside this one that brings the saves to storage and outlives the trainer. Only the process that
    made a Manager may use it, only one of its threads at a time may save or restore, and it can have only one open
    Manager of a root.

    `with Manager(root) as manager:` closes the Manager at the end of the block and raises CheckpointError when the
    newest save is not durable. When the block raises, it waits for nothing: the agent continues alone, as after the
    death of the process. SystemExit closes the Manager and passes.

    Where the root cannot be written, the constructor warns (RuntimeWarning): what is there can be restored, and each
    save tries once more to claim the root, in a collective.

    Args:
        root: Where the run's checkpoints lie: a directory that all ranks share, or `s3://BUCKET/PREFIX`.
        run: The name of the run. None: the name that the root already has, else the last component of `root`.
        slots: How many copies of the state fit into shared memory per rank, at least 2. None: 2, or 3 with
            `storage_every`.
        overlap: Whether a save returns while threads still copy; every optimizer of the state then waits for them
            before its step. See `Manager.fence` for other code that changes the weights.
        every: The schedule of `step`: a number of steps, or a time, both above 0. None: `step` cannot be called.
        storage_every: Another such schedule, for which `every` is needed too, and of two numbers of steps not the
            smaller one: only the saves that are due by it go to storage, and the others stay in memory. None: all go to
            storage.
        keep: The retention policy: which checkpoints stay on storage. Default: the newest 3. None: all of them. A class
            of your own that derives `Policy` is called in rank 0's process.
        local: A directory on the node's own disk that holds copies of the saves, to restore from. None: no such copies.
        rate_limit: How many bytes a second each rank's agent writes to storage at most while training continues. None:
            no limit.
        compare: At every how many saves replicas are compared, besides the first one and those with `on_busy="wait"`:
            the ranks digest what they hold together with others, and a save whose ranks differ is refused. That costs
            reading all of it once. None: nothing is compared, and what the writing rank holds counts. Default: 10.
        process_group: The ranks of the run. None: all ranks, or this process alone where torch.distributed is not
            initialized.
        algorithm: The digest of the shards, `"xxh3"` or `"blake2b"`, see `repository.format.digest`. None: the one that
            HPK_DIGEST names, else the fastest one that all ranks can compute.
        max_lost: After so many saves in a row that failed or were dropped, at least 1, the next `save` or `step`
            raises. Saves that were skipped because earlier ones are still on their way do not count. None: it never
            raises for that, and only warns. Default: 10.
        partners: Whether each copy in memory is also sent to another node's memory, from which the ranks of a lost node
            resume.
        save_on_signal: Whether SIGUSR1 or SIGTERM to any rank makes `step` save on all ranks, wait until that save is
            durable and end the process with exit code 75, with which `hyperpod-kit job run` starts the job again. The
            Manager must then be made in the main thread; `close` restores the handlers from before (after such a signal
            it leaves both ignored). False: the signals do what they did.

    Raises:
        RunIsOwned: The root belongs to another run or to a live start of this one, or this process has an open Manager
            of it. On all ranks.
        CheckpointError: The root or shared memory cannot be used, or can never hold two checkpoints while `keep` keeps
            one; an agent does not start; the ranks run several releases. The same on all ranks.
        DigestUnavailable: `algorithm` cannot be computed here.
        OSError: The agent, or its directory in shared memory, cannot be made. The same on all ranks.
        ValueError: An argument is out of its range, or `save_on_signal` was given outside of the main thread.

    Example:
        import torch
        from hyperpod_kit.checkpoint import Manager, State

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        state = State(model, optimizer)
        with Manager("/tmp/run", every=100) as manager:
            for step in range(manager.restore(state).next_step, 250):
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                manager.step(step, state)
            manager.save(249, state, on_busy="wait")
    """

    @ambient.with_dispatch_modes_disabled
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
        if slots is None:
            slots = _SLOTS
            if storage_every is not None:
                slots += 1
        if slots < _SLOTS:
            raise ValueError(f"slots must be at least {_SLOTS}: the newest sealed copy is never overwritten")
        self._ranks = Ranks(process_group)
        preemption = PreemptionSignal(self._ranks, enabled=save_on_signal)
        self._cadences = save_schedule.Cadences(every, storage_every, self._ranks, preemption)
        self._progress = ProgressWriter(waited=data_wait.LOOP.seconds_so_far)
        self._saves = Saves(os.fspath(root), max_lost, waiting=self._progress.report_phase_advance)
        self._caller = CallerGuard()
        self._closed: bool | None = None
        self._start = startup.agree_on_start_identity(self._ranks, root, run, algorithm)
        root_capacity.require_room_for_two_checkpoints(self._ranks, self._start.root, keep)
        replica_check = ReplicaCheck(compare, self._start.algorithm)
        directory = None
        if local is not None:
            directory = os.path.abspath(local)
        by_agent = None
        if keep is not None and policy.is_serializable(keep):
            by_agent = keep.to_json()
        options: JsonMessage = {"local": directory, "rate_limit": rate_limit, "keep": by_agent, "partners": partners}
        user_policy = None
        if keep is not None and by_agent is None and self._ranks.rank == 0:
            user_policy = _make_user_policy(self._start, keep)
        self._event_handler = AgentEventHandler(
            self._start.incarnation, self._saves, replica_check, self._progress, user_policy
        )
        self._agent = startup.start_agent(
            self._ranks,
            self._start,
            options,
            self._event_handler.handle_event,
            meanwhile=lambda: _import_and_warm_up_capture_and_restore(self._start.algorithm),
        )
        from hyperpod_kit.checkpoint.capture.slots import SlotPool
        from hyperpod_kit.checkpoint.capture.staging import Staging
        from hyperpod_kit.checkpoint.restore.recovered_snapshots import RecoveredSnapshots
        from hyperpod_kit.checkpoint.transfer import memory_copy

        threads = memory_copy.copy_threads(self._start.rank_count_on_this_host)
        pool = SlotPool(self._start.run.run_id, self._ranks.rank, slots, folder=self._agent.shm_folder)
        link = None
        if partners:
            # What speaks with agents of other nodes, most runs do without.
            from hyperpod_kit.checkpoint.agent_client.partner_link import PartnerLink

            link = PartnerLink(self._ranks, self._start, self._agent)
        self._recovered = RecoveredSnapshots(
            self._ranks, self._start, self._agent, pool, local=directory, partners=link, threads=threads
        )
        self._staging = Staging(
            self._start.origin(self._ranks),
            self._start.algorithm,
            pool=pool,
            threads=threads,
            saves=self._saves,
            agent=self._agent,
            replica_check=replica_check,
            overlap=overlap,
            waiting=self._progress.report_phase_advance,
        )
        try:
            self._save_ids = SaveIds(self._ranks, self._start, self._recovered.keys_of_all_ranks)
        except BaseException:
            self._agent.detach()
            raise
        preemption.install()
        open_managers.register_manager(self)
        if self._save_ids.unclaimed:
            warnings.warn(
                f"this Manager cannot save: {self._save_ids.unclaimed}; it can restore existing checkpoints",
                RuntimeWarning,
                stacklevel=3,  # the caller of the Manager, whose constructor is called through `ambient`
            )

    @property
    def root(self) -> str:
        """The directory, as an absolute path, or the `s3://` prefix that the checkpoints lie in."""
        return self._start.root

    @property
    def run(self) -> str:
        """The run's name."""
        return self._start.run.run

    @property
    def ranks(self) -> Ranks:
        """The ranks of the run, and which of them this process is."""
        return self._ranks

    @property
    def algorithm(self) -> str:
        """The digest of the shards, the same on all ranks."""
        return self._start.algorithm

    @property
    def epoch(self) -> int:
        """The number of this start below the root: greater than that of any start before it."""
        return self._save_ids.epoch

    # --- restore ------------------------------------------------------------------------------------------------

    @renamed_arguments(attempt="checkpoint_id")
    def restore(
        self,
        state: checkpoint.State,
        *,
        checkpoint_id: str | None = None,
        progress: Callable[[checkpoint.RestoreProgress], None] | None = None,
    ) -> checkpoint.Restored | checkpoint.Fresh:
        """Restore `state` from the newest checkpoint that all ranks can prove.

        All ranks call it, and all get the same. A checkpoint is read from memory where it is there, else from `local`,
        else from storage, and each byte is compared with its digest.

        HPK_RESUME_FROM (the decision of `hyperpod-kit job run`) names the checkpoint to try first, unless memory has a
        newer one or this very attempt of the job (HPK_ATTEMPT) has committed a newer one; `none` means that nothing was
        found. HPK_RESUME_MEMORY=0 restores from storage only, neither from memory nor from `local`.

        A checkpoint that is newer and cannot be restored by these ranks (it was never committed and other ranks
        captured it, or one has lost its part) is named in `rejected` of the result.

        Rank 0 reports the result in one line: to the logger `hyperpod_kit.checkpoint` at level INFO where the program
        has set up logging for it, else to standard error.

        Args:
            state: The objects to fill in place.
            checkpoint_id: The name of a committed checkpoint, as `hyperpod-kit checkpoint ls` lists it: this one is
                restored and no other, whatever HPK_RESUME_FROM names. The saves that follow are newer than all that is
                there. Newer checkpoints stay on storage; what is newer and only in memory is given up. Every start that
                passes the name goes back to it: `hyperpod-kit job run --from` does so once, and `job rewind` for all
                starts to come. It may be given in the midst of training too, to go back from a loss that is nan. None:
                the newest checkpoint.
            progress: Called with a `RestoreProgress` of this rank, about every half second from a thread that reads,
                and at the end. None: no call.

        Returns:
            What was restored; or `Fresh`, never with `checkpoint_id`, and only when nothing was ever committed, which
            the manifests and all other records of a commit have to agree on, or when a person asked to begin anew
            (`hyperpod-kit job run --fresh`; HPK_FRESH=1 where nothing can be restored).

        Raises:
            NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted; `reasons` has
                one for each candidate that is damaged or lost.
            DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
            StorageUnreadable: The newest checkpoint cannot be read from storage: an I/O error that lasts is no reason
                to go back to an older one.
            StateNotSerializable: A value of the state is one that no checkpoint can hold. For one that an optimizer
                makes: in its first step.
            NotEnoughSharedMemory: The shared memory of a node can never hold the slots of its ranks.
            CheckpointError: The state does not fit, `checkpoint_id` is not there or ranks name different ones, a loader
                of the state was iterated before the first restore, another thread saves or restores, the Manager is
                closed or of another process, or Slurm started this step without a decision that HPK_CHECKPOINT_ROOT
                asks for.

        Example:
            With a `manager` and a `state`:

                result = manager.restore(state)
                print(f"training begins at step {result.next_step}, after {result.seconds:.1f} s")
        """
        self._require_usable()
        with self._caller.refuse_concurrent_calls("restore"), ambient.disable_dispatch_modes():
            return self._restore(state, checkpoint_id, progress)

    def _restore(
        self,
        state: checkpoint.State,
        checkpoint_id: str | None,
        progress: Callable[[checkpoint.RestoreProgress], None] | None,
    ) -> checkpoint.Restored | checkpoint.Fresh:
        # Since the Manager was made they are there, see `_import_and_warm_up_capture_and_restore`.
        from hyperpod_kit.checkpoint.restore.results import Restored
        from hyperpod_kit.checkpoint.run import start_report
        from hyperpod_kit.checkpoint.transfer.restore_progress import callback_with_activity

        if not self._recovered.is_fate_of_snapshots_decided:
            self._raise_any_problem(started_loaders.error_for_loader_iterated_before_restore(state.objects))
        self._staging.fence.wait_until_captured()
        # What is made for a state must be usable by a training step, wherever the restore is called.
        with self._progress.report_phase_during(Phase.RESTORE), torch.inference_mode(False):
            progress = callback_with_activity(self._progress.report_phase_advance, progress)
            restored = self._recovered.restore_and_free_other_snapshots(
                state, progress, self._save_ids.epoch, checkpoint_id
            )
        if isinstance(restored, Restored):
            self._save_ids.set_parent(restored.seq, restored.step)
            self._save_ids.set_lineage_start_epoch(restored.line)
            if restored.tier == STORAGE:
                self._saves.record_restored(restored.seq, restored.step)
        if self._ranks.rank == 0:
            start_report.report_start(self.root, restored)
        self._prepare_first_save(state)
        self._progress.report_first_step(restored.next_step)
        return restored

    @ambient.with_dispatch_modes_disabled
    @renamed_arguments(attempt="checkpoint_id")
    def inspect(self, checkpoint_id: str | None = None) -> checkpoint.CheckpointInfo | None:
        """Read what a checkpoint holds beside its tensors, before there is a state to restore.

        All ranks call it, before `restore`, and all get the same. It changes nothing, and costs no tier of the
        `restore` that follows. Only the beginning of the checkpoint is proved: compare the result's `checkpoint_id`
        with what `restore` returns.

        Args:
            checkpoint_id: The name of a checkpoint: this one and no other. None: the newest one.

        Returns:
            What rank 0 saved besides its tensors; None when nothing was ever committed, or when HPK_FRESH=1 begins the
            run anew.

        Raises:
            NoValidCheckpoint: Checkpoints were committed, and none of them is there or can be trusted.
            DigestUnavailable: This interpreter cannot compute a checkpoint's digest.
            StorageUnreadable: The newest checkpoint cannot be read from storage (an I/O error that lasts).
            CheckpointError: `checkpoint_id` is not there, ranks name different ones, the Manager is closed or of
                another process, or Slurm started this step without a decision that HPK_CHECKPOINT_ROOT asks for.

        Example:
            With a `manager`:

                newest = manager.inspect()
                tokens = newest.extra.get("tokens", 0) if newest else 0
        """
        self._require_usable()
        return self._recovered.peek(checkpoint_id)

    def _prepare_first_save(self, state: checkpoint.State) -> None:
        """Make its slots as soon as every tensor exists. Raise StateNotSerializable, on all ranks, for a
        state that no save could take: no step is trained for nothing."""
        problem: StateNotSerializable | None = None
        tensors: StateTensors | None = None
        try:
            # One walk does for both where there is nothing to wait for.
            if state.is_complete:
                tensors = state.tensors(self._ranks)
            else:
                state.check(self._ranks)
        except StateNotSerializable as err:
            problem = err
        self._raise_any_problem(problem)
        state.warn_of_modules_without_tensors()
        if tensors is not None:
            self._staging.make_slots_in_thread(tensors)
            return
        # An optimizer that waits for its first step is no reason to keep a Manager that the program has lost.
        prepare = weakref.WeakMethod(self._make_slots_in_thread)

        def complete(state: checkpoint.State) -> None:
            method = prepare()
            if method is not None:
                method(state)

        state.when_complete(complete)

    def _raise_any_problem(self, problem: CheckpointError | None) -> None:
        """Raises the problem of this rank, else that of another one. A collective."""
        problems = [rank_problem for rank_problem in self._ranks.gather(problem) if rank_problem is not None]
        if problem is not None or problems:
            raise problem or problems[0]

    def _make_slots_in_thread(self, state: checkpoint.State) -> None:
        """Start to make and fault in the slots while training continues; the first save finds them. Raises
        StateNotSerializable for what an optimizer has made in its first step."""
        self._staging.make_slots_in_thread(state.tensors(self._ranks))

    # --- save ---------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> int:
        """How many saves of this Manager found no free slot."""
        return self._saves.skipped

    def step(self, step: int, state: checkpoint.State, *, metrics: Mapping[str, Any] | None = None) -> Handle | None:
        """Save if a save is due by the schedule `every`; every rank calls it after each step.

        When saves cannot reach storage it saves at once, and raises as `save` does: no step is trained unprotected
        until a save is due. `hyperpod-kit job status` shows from it how far each rank is.

        Args:
            step: The number of the step just completed, from 0: an integer of any type.
            state: The objects to save.
            metrics: Kept with the checkpoint, see `save`.

        Returns:
            The save; None when none was due.

        Raises:
            SystemExit: With code 75, after a signal: see `save_on_signal`.
            ValueError: The Manager has no `every`, or `step` is below 0.
            TypeError: `step` is no integer, or a metric no real number.
            CheckpointError: As `save`, with the same subclasses.

        Example:
            With a `manager` that was made with `every=100`, a `state` and a function `train_step`:

                for step in range(manager.restore(state).next_step, 250):
                    loss = train_step()
                    manager.step(step, state, metrics={"loss": loss})
        """
        self._require_usable()
        step = arguments.checked_step(step)
        self._progress.report_completed_step(step)
        self._saves.emit_warnings(2)
        if self._cadences.preemption.poll_all_ranks():
            self._save(step, state, "wait", arguments.validate_and_encode_metrics(metrics), "storage")
            self.close()
            raise SystemExit(REQUEUE_EXIT_CODE)
        tier = self._cadences.due(step)
        if tier is None and self._saves.trouble is None:
            return None
        return self._save(step, state, "skip", arguments.validate_and_encode_metrics(metrics), tier or "storage")

    def reached(self, step: int) -> bool:
        """Report that `step` is completed, in a loop that decides itself when to save.

        Call it after each step, on every rank: `hyperpod-kit job status` and the watch for jobs that hang take from it
        how far this rank is. Read `ending` after it: whether to save and end.

        Args:
            step: The number of the step just completed, from 0: an integer of any type.

        Returns:
            False when saves cannot reach storage: save at once, which raises, with the state in memory. True otherwise.

        Raises:
            TypeError: `step` is no integer.
            ValueError: `step` is below 0.
            CheckpointError: The Manager is closed or of another process.

        Example:
            With a `manager`, a `state`, and functions `train_step` and `is_due` of your own:

                for step in range(manager.restore(state).next_step, 250):
                    train_step()
                    if not manager.reached(step) or is_due(step):
                        manager.save(step, state)
        """
        self._require_usable()
        self._progress.report_completed_step(arguments.checked_step(step))
        self._cadences.preemption.poll_all_ranks()
        self._saves.emit_warnings(2)
        return self._saves.trouble is None

    def evaluation(self) -> AbstractContextManager[None]:
        """Mark an evaluation between two steps: the watch for jobs that hang gives it more time than a step.

        It does not count as a step.

        Returns:
            A context manager around the evaluation.

        Raises:
            CheckpointError: The Manager is closed or of another process.

        Example:
            With a `manager` and a function `evaluate`:

                with manager.evaluation():
                    loss = evaluate()
        """
        self._require_usable()
        return self._progress.report_phase_during(Phase.EVALUATION)

    @property
    def ending(self) -> bool:
        """Whether a signal has come to any rank by the last call of `reached`, with `save_on_signal`.

        It is the same on all ranks. When it is True, save with `on_busy="wait"`, close, and end with exit code 75.
        """
        return self._cadences.preemption.is_set

    def save(
        self,
        step: int,
        state: checkpoint.State,
        *,
        on_busy: arguments.OnBusy = "skip",
        metrics: Mapping[str, Any] | None = None,
        tier: save_schedule.Tier = "storage",
    ) -> Handle:
        """Copy the state into shared memory and return; everything else happens while training continues.

        Every rank calls it for the same steps, with the same `on_busy` and `tier`. It needs no collective (but for
        FSDP1 and `State(full=True)`) and does not wait for storage, unless the root could not be written when the run
        started: then each save tries that once more. It warns (RuntimeWarning) of saves that were lost in the meantime.

        Args:
            step: The number of the step just completed, from 0: an integer of any type.
            state: The objects to save.
            on_busy: What to do when no slot is free. "skip": the handle becomes `skipped`, and training continues.
                "wait" (for a last save): wait for a slot, and compare (see `compare`). "replace": drop an older save
                that is complete in memory, but not yet being written to storage, for this one.
            metrics: Kept with the checkpoint: real numbers of any type by name, nan and infinities too. The policy
                `Best` reads them.
            tier: "storage": through memory to the root. "memory": the save stays in memory, sealed and restored as
                others, until a newer one is in memory on all ranks; the newest is brought to storage when a trainer
                ends or dies, by `close`, and on SIGTERM and SIGUSR1.

        Returns:
            The save, to follow or to wait for.

        Raises:
            TypeError: `step` is no integer, the name of a metric is no string, or its value is no real number.
            ValueError: `step` is below 0, or `on_busy` or `tier` is none of those above.
            StateNotSerializable: A value is neither a tensor nor typed JSON.
            NotEnoughSharedMemory: A slot for the state does not fit into shared memory.
            RunIsOwned: A newer start has taken the root; on all ranks, from the save on that found it.
            CheckpointError: The root holds a checkpoint and nothing was restored; another thread saves or restores; the
                Manager is closed or of another process; or saves cannot reach storage (the agent has ended or stands
                still, or `max_lost` saves in a row were lost): the state is then in memory where a slot was free, and a
                new start takes it from there.

        Example:
            With a `manager` that has restored a `state`, and the number `step` of the step just completed:

                handle = manager.save(step, state, metrics={"val_loss": 2.5})
                print(f"training stood still for {handle.stall_ms:.1f} ms")
                handle.wait("durable", timeout=60)
        """
        self._require_usable()
        step = arguments.checked_step(step)
        self._progress.report_completed_step(step)
        if on_busy not in ("skip", "wait", "replace"):
            raise ValueError(f"on_busy is {on_busy!r}, expected 'skip', 'wait' or 'replace'")
        if tier not in save_schedule.TIERS:
            raise ValueError(f"tier is {tier!r}, expected 'storage' or 'memory'")
        return self._save(step, state, on_busy, arguments.validate_and_encode_metrics(metrics), tier)

    def _save(
        self,
        step: int,
        state: checkpoint.State,
        on_busy: arguments.OnBusy,
        metrics: dict[str, float | str],
        tier: save_schedule.Tier,
    ) -> Handle:
        with self._progress.report_phase_during(Phase.SAVE), self._caller.refuse_concurrent_calls(
            "save"
        ), ambient.disable_dispatch_modes():
            begin = time.perf_counter()
            if self._saves.taken_by is not None and self._saves.trouble is not None:
                raise self._saves.trouble
            self._staging.fence.wait_until_captured()
            self._recovered.require_nothing_to_restore_and_free_snapshots()
            if self._save_ids.unclaimed:
                self._save_ids.claim_epoch()
            tensors = state.tensors(self._ranks)
            tensors.tree["save"] = {
                "parent": self._save_ids.parent,
                "line": self._save_ids.lineage_start_epoch,
                "metrics": metrics,
            }
            handle = self._saves.new(step, self._save_ids.epoch, self._save_ids.next_seq(), tier)
            if self._save_ids.unclaimed:
                self._saves.end_without_success(handle, SaveState.FAILED, self._save_ids.unclaimed)
            elif self._staging.stage(tensors, handle, on_busy, state):
                self._save_ids.set_parent(handle.seq, step)
            handle.stall_ms = (time.perf_counter() - begin) * 1000.0
            self._saves.emit_warnings(3)
            trouble = self._saves.trouble
            if trouble is not None:
                raise trouble
            return handle

    def fence(self) -> None:
        """Wait until the weights may change: until everything that an overlapped save still reads is copied.

        An optimizer of the state calls it before its step. Call it before you change the weights in another way.

        Example:
            With a `model` and a `manager` that was made with `overlap=True`:

                import torch

                manager.fence()
                with torch.no_grad():
                    model.weight.clamp_(-1, 1)
        """
        self._staging.fence.wait_until_sources_free()

    def _require_usable(self) -> None:
        """Raises CheckpointError unless this process made the Manager and it is open."""
        if not self._caller.is_creator_process:
            raise CheckpointError(
                f"process {os.getpid()} was forked from process {self._caller.pid}, whose Manager this is",
                hint="save, restore and close in the process that created the Manager",
            )
        if self._closed is not None:
            raise CheckpointError(f"this Manager of {self.root} is closed", hint="create a new Manager and restore")

    # --- end ----------------------------------------------------------------------------------------------------

    def close(self, drain: float | None = None) -> bool:
        """Wait until every save is durable and the agent has cleaned up, and end the Manager.

        Called again it returns the same.

        Args:
            drain: How many seconds to wait at most. None: as long as bytes move.

        Returns:
            True when the newest save that was asked for is durable, or when none was asked for. False when it was
            skipped, dropped or failed, when the time was not enough or storage hangs (the agent then continues alone),
            or when the agent died.

        Raises:
            CheckpointError: The Manager is of another process.

        Example:
            With a `manager` that has restored a `state`, and the number `step` of the step just completed:

                manager.save(step, state)
                if not manager.close(drain=60):
                    print("the newest save is not on storage")
        """
        if self._closed is not None and self._caller.is_creator_process:
            return self._closed
        self._require_usable()
        self._progress.report_phase(Phase.CLOSE)
        self._cadences.preemption.restore_handlers_or_ignore_after_signal()
        self._staging.close()
        self._agent.send(Close())
        begin = time.monotonic()
        patience = drain
        if patience is None:
            patience = _POLL_SECONDS
        done = self._agent.wait_exit(patience)
        while not done and drain is None and self._saves.stalled is None:
            self._progress.report_phase_advance()  # the agent itself says when nothing moves
            done = self._agent.wait_exit(_POLL_SECONDS)
        if not done:
            waited, reason = time.monotonic() - begin, self._saves.stalled
            cause = ""
            if reason:
                cause = f" ({reason})"
            self._saves.warn_later(
                f"saves did not become durable within {waited:.0f} s{cause}; the agent (pid {self._agent.pid}) goes on"
            )
        if self._event_handler.user_policy is not None:
            self._event_handler.user_policy.close()
        self._closed = done and self._agent.ended_cleanly and self._saves.is_newest_durable
        open_managers.unregister_manager(self)
        newest = self._saves.newest
        if newest is not None and done and not self._saves.is_newest_durable:
            self._saves.warn_later(
                f"the newest save, of step {newest.step}, is not durable: {newest.state}: {newest.reason}"
            )
        self._saves.emit_warnings(2)
        self._progress.report_phase(Phase.OVER)
        return self._closed

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises CheckpointError at the normal end of the block when `close` is False."""
        if self._closed is not None or not self._caller.is_creator_process:
            return
        if kind is None or issubclass(kind, SystemExit):
            if not self.close() and kind is None:
                raise CheckpointError(
                    f"the newest save is not durable: {self._saves.newest!r}",
                    hint="restart the run: it restores the newest step that all ranks have in memory",
                )
            return
        # Other ranks may be far behind or gone: nothing is waited for, and memory is left for the next start.
        self.rest()
        self._cadences.preemption.restore_handlers_or_ignore_after_signal()
        self._closed = False
        self._staging.close_without_waiting()
        self._agent.detach()
        open_managers.unregister_manager(self)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """A notebook that runs a cell again, or deletes the name, has lost it: the next Manager of the root closes it.
        Its saves go on meanwhile."""
        if is_ending():
            return  # the modules are gone
        if getattr(self, "_closed", False) is None and self._caller.is_creator_process:
            open_managers.retain_forgotten(self)

    def rest(self) -> None:
        """Stop this Manager's threads from running inside torch; called before the interpreter ends."""
        self._staging.stop_threads(_REST_SECONDS)
        if self.protects and not self._saves.is_newest_durable:
            log.warning("no close(): %r; the agent (pid %d) goes on alone", self._saves.newest, self._agent.pid)

    @property
    def protects(self) -> bool:
        """Whether saves can still reach storage: the Manager is open and its agent has not ended."""
        return self._closed is None and self._saves.agent_error is None

    def leave_to_parent(self) -> None:
        """Close what a forked child has inherited, so that the agent does not take it for the trainer."""
        self._agent.close_in_forked_child()


def _import_and_warm_up_capture_and_restore(algorithm: str) -> None:
    """Import what a Manager makes once its agent is there, all that saves and restores need: none of them may wait for
    it, nor find the package gone. Until then it would only make `import Manager` longer.
    """
    from hyperpod_kit.checkpoint.capture import slots, staging  # noqa: F401
    from hyperpod_kit.checkpoint.restore import recovered_snapshots  # noqa: F401
    from hyperpod_kit.checkpoint.run import start_report  # noqa: F401
    from hyperpod_kit.checkpoint.transfer import load

    load.warm_up_digest_and_copy_code(algorithm)


def _make_user_policy(start: startup.StartIdentity, policy: policy.Policy) -> UserPolicy:
    from hyperpod_kit.checkpoint.run.user_policy import UserPolicy  # few runs bring a policy of their own

    return UserPolicy(start, policy)
