"""Find the newest checkpoint that every rank can prove, and bring the live state to it.

For each candidate: its tree is proved, the state says which live tensors it fills, and every rank streams into them
what it needs, each chunk checked before it is handed on. A candidate counts when every rank has all of it; a rank's
error is a reason that all ranks hear of, and the next tier or the next candidate overwrites what was filled so far.
When the state does not fit, or its memory cannot be filled, no older candidate is tried: that is the program's error.
What does not fit is found before a live tensor is written to.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from hyperpod_kit.checkpoint.agent.reports.name_coverage import combine_plans as one_plan
from hyperpod_kit.checkpoint.agent.shm.control_page import Key
from hyperpod_kit.checkpoint.agent.shm.node_tiers import STORAGE
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.dcp import reshard, sharing, slices
from hyperpod_kit.checkpoint.ranks import placement
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason, Verdict
from hyperpod_kit.checkpoint.ranks.submeshes import TensorLayout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import commit_records, fresh_start
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.retrying import with_read_retries
from hyperpod_kit.checkpoint.restore import candidates, replicate
from hyperpod_kit.checkpoint.restore.agreement import Agreement
from hyperpod_kit.checkpoint.restore.candidate_rejected import CandidateRejected
from hyperpod_kit.checkpoint.restore.candidate_run import CandidateRun, NearerTiers, ProvedHeader
from hyperpod_kit.checkpoint.restore.candidates import Candidate, ResumeFrom
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.state.state import State
from hyperpod_kit.checkpoint.state.tensors import StateTensors, TensorPiece
from hyperpod_kit.checkpoint.tiers import TIERS
from hyperpod_kit.checkpoint.tiers.base import HeldShard
from hyperpod_kit.checkpoint.transfer import load
from hyperpod_kit.checkpoint.transfer.restore_progress import ProgressCallback, ReadBytes
from hyperpod_kit.environment import HPK_FRESH, HPK_RESUME_MEMORY
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint, StateNotSerializable

Local = TypeVar("Local")

_SWITCH_SECONDS = 0.0002

log = logging.getLogger("hyperpod_kit.checkpoint")


class RestoreOutcome(NamedTuple):
    """What was found, and the capture that it came from, which the agents are to keep."""

    got: Restored | Fresh
    keep: Key | None


def restore(
    ranks: Ranks,
    store: Store,
    state: State,
    *,
    nearer: NearerTiers,
    copies_of_ranks: Sequence[Sequence[HeldShard]],
    resume_from: ResumeFrom = candidates.NO_DECISION,
    only_checkpoint_id: str | None = None,
    read_ahead: bool = True,
    before_fill: Callable[[], None] = lambda: None,
    progress: ProgressCallback | None = None,
    epoch: int = 0,
) -> RestoreOutcome:
    """Bring `state` to the newest checkpoint that all ranks can prove. All ranks call it; all get the
    same.

    `copies_of_ranks` is what each rank has besides the root (`NearerTiers.list_copies`), `nearer`
    where this rank has it. Of `copies_of_ranks` and `resume_from` rank 0's counts.
    `only_checkpoint_id`: this checkpoint and no other. `read_ahead`: this rank's own shard is read
    while the state is walked, of which not all may be wanted. `before_fill`, a collective, is
    called for each candidate before a live tensor is written to, while a shard in memory is already
    read; what it raises is passed on. `progress`: see `restore_progress.ReadBytes`. `epoch`: of
    this start, of one that may save. A read that fails is tried again for some seconds.

    Raises NoValidCheckpoint, DigestUnavailable, StorageUnreadable when the root does not give up
    the newest that it has, CheckpointError when the state does not fit or cannot be filled, or the
    root cannot be listed.
    """
    store = with_read_retries(store)
    listing = candidates.iter_candidates_newest_first(ranks, store, copies_of_ranks, resume_from, only_checkpoint_id)
    try:
        with _short_switch_interval():
            outcome = _restore(
                ranks, store, state, nearer, listing, read_ahead, before_fill, progress, resume_from.fresh, epoch
            )
    except BaseException:
        state.withdraw()
        raise
    if isinstance(outcome.got, Fresh):
        state.withdraw()
    return outcome


@contextlib.contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Shorten the interpreter's switch interval for the block: threads that compare and copy need its
    lock for some microseconds a chunk, and one that walks over the state hands it over by default
    only after 5 ms, the time that three chunks take."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def _restore(
    ranks: Ranks,
    store: Store,
    state: State,
    nearer: NearerTiers,
    listing: Iterator[Candidate],
    read_ahead: bool,
    before_fill: Callable[[], None],
    progress: ProgressCallback | None,
    fresh: bool,
    epoch: int,
) -> RestoreOutcome:
    begin = time.monotonic()
    touched = False
    rejected: list[tuple[str, str]] = []
    committed = lost = False
    level = _level_on_rank_zero_else_debug(ranks, logging.INFO)
    log_line, read = partial(log.log, level), ReadBytes(progress, level)
    for candidate in listing:
        committed = committed or candidate.committed
        lost = lost or candidate.lost
        if candidate.skip_reason:
            rejected.append((candidate.checkpoint_id, candidate.skip_reason))
            log_line("restore: passed over %s: %s", *rejected[-1])
            continue
        log_line("restore: reading %s", candidate.checkpoint_id)
        with contextlib.closing(
            _RestoreRun(ranks, store, state, nearer, candidate, read_ahead, before_fill, read)
        ) as run:
            count_before = len(rejected)
            restored = run.restore_returning_tier_and_bytes(rejected)
        for name_and_reason in rejected[count_before:]:
            log_line("restore: abandoned %s: %s", *name_and_reason)
        touched = touched or run.touched
        if restored is not None:
            read.report_complete()
            tier, size = restored
            name = candidate.name
            log_line(
                "restore: done, %s from %s: %d bytes, %.1f s",
                candidate.checkpoint_id,
                tier,
                size,
                time.monotonic() - begin,
            )
            return RestoreOutcome(
                Restored(
                    name.step,
                    name.epoch,
                    name.seq,
                    candidate.checkpoint_id,
                    tier,
                    time.monotonic() - begin,
                    size,
                    tuple(rejected),
                    run.line,
                ),
                candidate.snapshot_key,
            )
    if committed and not ranks.broadcast(fresh):
        hint = None
        if lost:
            hint = commit_records.repair_hint(store.url)
        raise NoValidCheckpoint(store.url, rejected, hint=hint)
    if committed:
        _record_fresh_start(ranks, store, epoch)
        log.log(
            _level_on_rank_zero_else_debug(ranks, logging.WARNING),
            "restore: %s=1: the run starts again at step 0, and ignores the committed checkpoints: %s",
            HPK_FRESH,
            "; ".join(f"{name}: {reason}" for name, reason in rejected),
        )
    touched_anywhere = bool(rejected) and any(ranks.gather(touched))
    if touched_anywhere and committed:
        raise CheckpointError(
            f"{HPK_FRESH} is set, so the run starts again at step 0, but some tensors were filled before their "
            "checkpoint proved to be damaged",
            hint="restart the run: it now ignores the committed checkpoints",
        )
    if touched_anywhere:
        # Its first tensors were filled before the rest turned out bad: no state to begin from.
        reasons = "; ".join(f"{name}: {reason}" for name, reason in rejected)
        raise CheckpointError(
            "no checkpoint was committed, and the captures in memory proved to be damaged after some tensors were "
            f"filled: {reasons}",
            hint=f"restart the run from step 0 with {HPK_RESUME_MEMORY}=0",
        )
    before_fill()
    update_placement_and_clear_state_cache(ranks, state)
    return RestoreOutcome(Fresh(time.monotonic() - begin, tuple(rejected)), None)


def _level_on_rank_zero_else_debug(ranks: Ranks, level: int) -> int:
    """Return `level` on rank 0, and DEBUG on all others."""
    if ranks.rank == 0:
        return level
    return logging.DEBUG


def _record_fresh_start(ranks: Ranks, store: Store, epoch: int) -> None:
    """Record in the root, on rank 0, that the run leaves what starts before `epoch` have saved. Raises
    CheckpointError on all ranks."""
    problem: str | None = None
    if ranks.rank == 0:
        try:
            fresh_start.record_root_fresh_start(
                store, by=f"{HPK_FRESH} of epoch {epoch}", last_excluded_epoch=epoch - 1
            )
        except (CheckpointError, OSError) as err:
            problem = verify.describe_failure(err)
    problem = ranks.broadcast(problem)
    if problem is not None:
        raise CheckpointError(f"{store.url}: cannot record that the run starts again at step 0: {problem}")


class _RestoreRun(CandidateRun):
    """One candidate, and the state that is brought to it."""

    def __init__(
        self,
        ranks: Ranks,
        store: Store,
        state: State,
        nearer: NearerTiers,
        candidate: Candidate,
        read_ahead: bool,
        before_fill: Callable[[], None],
        read: ReadBytes,
    ) -> None:
        super().__init__(ranks, store, nearer, candidate)
        self._state = state
        self._ahead, self._before, self._read_bytes = read_ahead, before_fill, read
        self._reading: load.Reading | None = None
        self.touched = False  # whether a live tensor of this rank was written to
        self.line = 0
        """The epoch of the start from scratch that the candidate descends from; 0 when it does not say."""

    def restore_returning_tier_and_bytes(self, rejected: list[tuple[str, str]]) -> tuple[str, int] | None:
        """Restore the state from this candidate and return (tier, bytes); None when no tier of it is good.
        Reasons are added to `rejected`."""
        return self.try_tiers(rejected, self._fill_returning_tiers_and_bytes)

    def close(self) -> None:
        """Stop reading and release the lease."""
        self._stop_reading()
        super().close()

    def _read_proved_header(self, tiers: tuple[str, ...]) -> ProvedHeader:
        """See CandidateRun. A shard of a tier that reads early is read meanwhile: other ranks need not agree first."""
        self._stop_reading()
        own_tier = tiers[self._ranks.rank]
        if self._ahead and STORAGE not in tiers and self._nearer.tier(own_tier).reads_early:
            self._reading = load.Reading(self._open_copy(own_tier), self._nearer.threads)
        header = super()._read_proved_header(tiers)
        if header.tiers[self._ranks.rank] != own_tier:
            self._stop_reading()
        return header

    def _get_or_start_reading_own_shard(self, header: ProvedHeader) -> load.Reading:
        """Return the reading of this rank's own shard, started now unless it already is."""
        if self._reading is None:
            self._reading = load.Reading(self._open_own_shard(header), self._nearer.threads)
        return self._reading

    def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self.touched = self.touched or reading.has_written_targets
            reading.close()

    def _fill_returning_tiers_and_bytes(self, header: ProvedHeader) -> tuple[str, int]:
        self._before()
        self.line = _lineage_epoch(header.tree)
        require_same_data_positions(self._agreement, self._state.objects, header.tree)
        return "+".join(tier for tier in TIERS if tier in header.tiers), self._fill_state_and_return_bytes(header)

    def _fill_state_and_return_bytes(self, header: ProvedHeader) -> int:
        """Fill and load the state from the candidate, shard by shard or resharded; return how many bytes
        it has. Raises CandidateRejected, CheckpointError."""
        same_world = header.world == self._ranks.world
        cached: dict[slices.Chunk, memoryview] = {}
        # Reading needs no plan: it goes on while the state is walked.
        reading = None
        if same_world and self._ahead:
            reading = self._get_or_start_reading_own_shard(header)
        targets, same = self._targets_and_is_same_plan(header, reading)
        if same and same_world:
            if reading is None:
                reading = self._get_or_start_reading_own_shard(header)
                self._agreement.run_or_raise_misfit(partial(self._require_matching_shard, reading, targets))
            loaded = self._fill_same_layout(header, targets, reading)
            size = self._total_shard_bytes(header)
        else:
            if reading is not None and header.tiers[self._ranks.rank] == STORAGE:
                cached = {
                    (self._ranks.rank, number): view for number, view in reading.stop_and_take_proved_chunks().items()
                }
            self._stop_reading()
            if header.body is None:
                if not self._candidate.committed:
                    # It has no index, so only the same division among the ranks could read it.
                    raise CandidateRejected(
                        Reason(
                            "it was captured with other tensors or another layout over the ranks, and never committed"
                        )
                    )
                header = self._read_header_from_root((STORAGE,) * self._ranks.world)
            loaded, size = self._fill_resharded(header, targets, cached)
        self._agreement.run_or_raise_misfit(lambda: self._state.adopt(header.tree, loaded))
        return size

    def _targets_and_is_same_plan(
        self, header: ProvedHeader, reading: load.Reading | None
    ) -> tuple[StateTensors, bool]:
        """Return (the tensors that the state wants filled, whether the plan is on every rank that of the
        save)."""

        def walk() -> tuple[StateTensors, str]:
            targets = self._state.targets(self._ranks, header.tree)
            if reading is not None:
                self._require_matching_shard(reading, targets)
            return targets, targets.plan

        targets, plans = self._agreement.run_and_gather_or_raise_misfit(walk)
        if len(set(plans)) > 1 and update_placement_and_clear_state_cache(self._ranks, self._state):
            targets, plans = self._agreement.run_and_gather_or_raise_misfit(walk)
        return targets, one_plan(plans) == header.plan

    def _require_matching_shard(self, reading: load.Reading, targets: StateTensors) -> None:
        """Raise CheckpointError where the shard's header does not fit the targets: the plan says nothing
        of what only this rank has."""
        reading.require_matching_header_if_readable({piece.spec.name: piece for piece in targets.pieces})

    @contextlib.contextmanager
    def _open_own_shard(self, header: ProvedHeader) -> Iterator[load.ProvedShard]:
        """Open this rank's own shard on the tier that the header names. Raises DigestMismatch,
        CheckpointError, OSError."""
        rank = self._ranks.rank
        tier = header.tiers[rank]
        if tier != STORAGE:
            with self._open_copy(tier) as proved_shard:
                yield proved_shard
            return
        assert header.body is not None
        with reshard.open_checkpoint(self._store, self._candidate.checkpoint_id, header.body) as opened:
            yield load.ProvedShard(opened.shard(rank))

    def _open_copy(self, tier: str) -> contextlib.AbstractContextManager[load.ProvedShard]:
        """Open this rank's own shard on a tier besides the root."""
        return self._nearer.tier(tier).open_shard(self._copy_of(self._ranks.rank, tier))

    def _total_shard_bytes(self, header: ProvedHeader) -> int:
        """Return the bytes of all ranks' own shards."""
        total = 0
        for rank, tier in enumerate(header.tiers):
            if header.body is None or tier != STORAGE:
                total += self._copy_of(rank, tier).size
            else:
                total += header.body.shards[rank].size
        return total

    def _fill_same_layout(
        self, header: ProvedHeader, targets: StateTensors, reading: load.Reading
    ) -> Mapping[str, torch.Tensor]:
        """Fill the tensors of a checkpoint that the same ranks saved: each rank reads its own shard, and
        replicated pieces are broadcast. Return the tensors without a target."""
        pieces = {piece.spec.name: piece for piece in targets.pieces}

        def read() -> tuple[load.ShardLoad, replicate.ShardTable]:
            self._read_bytes.begin(self._candidate.checkpoint_id, reading.size)
            shard_load = reading.fill(pieces, self._read_bytes)
            for piece in targets.pieces:
                if piece.replica[1] == 1 and piece.spec.name not in shard_load.here:
                    raise CheckpointError(f"{piece.spec.name} is not in this rank's shard")
            return shard_load, replicate.build_shard_table(targets.pieces, shard_load.here)

        shard_load, tables = self._agreement.run_and_gather_or_reject(read)
        shared = replicate.broadcast_read_pieces_to_holders(self._ranks, targets.pieces, tables, header.algorithm)
        self._agreement.raise_first_problem(shared.problems)
        if shared.any_lost and header.body is None:
            raise CandidateRejected(Reason("data from other ranks was damaged in transit"))
        if shared.any_lost:
            self._read_requested_slices(
                header,
                partial(
                    _add_requests_for_pieces,
                    pieces=[target for target in targets.pieces if target.spec.name in shared.lost],
                ),
            )
        return shard_load.loaded

    def _fill_resharded(
        self, header: ProvedHeader, targets: StateTensors, cached: Mapping[slices.Chunk, memoryview]
    ) -> tuple[Mapping[str, torch.Tensor], int]:
        """Fill the tensors of a checkpoint of other ranks or another division from slices wherever they
        lie; return the tensors without a target and the bytes. `cached` are chunks that are read
        already."""

        def want(requests: slices.SliceRequests) -> dict[str, torch.Tensor]:
            for common in (False, True):
                pieces = [target for target in targets.pieces if (target.replica[1] == self._ranks.world > 1) == common]
                _add_requests_for_pieces(requests, pieces, common=common)
            here = {piece.spec.name for piece in targets.pieces}.union(targets.absent)
            return {
                name: requests.request_full_in_new_tensor(name)
                for name in self._state.required_names(header.tree) - here
            }

        assert header.body is not None
        return self._read_requested_slices(header, want, targets.pieces, cached), header.body.total_bytes

    def _read_requested_slices(
        self,
        header: ProvedHeader,
        add_requests: Callable[[slices.SliceRequests], Local],
        pieces: Sequence[TensorPiece] = (),
        cached: Mapping[slices.Chunk, memoryview] = reshard.NO_CACHED_CHUNKS,
    ) -> Local:
        """Read from storage, each chunk once, what `add_requests` asks for, distribute it to the ranks and
        return the result of `add_requests`. A collective.

        Raises CandidateRejected, CheckpointError.
        """
        assert header.body is not None
        with reshard.open_checkpoint(self._store, self._candidate.checkpoint_id, header.body) as checkpoint:
            rows = reshard.read_and_broadcast_rows(self._ranks, checkpoint)
            if isinstance(rows, Reason):
                raise CandidateRejected(rows)
            self._agreement.run_or_raise_misfit(lambda: slices.require_saved_type_shape_of_pieces(rows, pieces))
            requests = slices.SliceRequests(rows)
            requested = self._agreement.run_or_reject(lambda: add_requests(requests))
            work = sharing.freeze_requests_and_assign_readers(self._ranks, requests, header.body.chunk, cached)
            chunk, local_chunks = header.body.chunk, work.chunks_read_by(self._ranks.rank)
            bytes_here = sum(
                min(chunk, header.body.shards[number].size - chunk_index * chunk)
                for number, chunk_index in local_chunks
            )
            self._read_bytes.begin(self._candidate.checkpoint_id, bytes_here)
            problem = reshard.read_and_distribute(self._ranks, checkpoint, work, requests, cached, self._read_bytes)
            self.touched = self.touched or requests.has_written_targets
            if problem is not None and problem.verdict is Verdict.UNFILLED:
                raise self._agreement.misfit_error(problem.text)
            if problem is not None:
                raise CandidateRejected(problem)
        return requested


def _lineage_epoch(tree: Mapping[str, Any]) -> int:
    """Return the epoch of the start from scratch that the checkpoint descends from; 0 when its tree
    does not say."""
    save = tree.get("save")
    line = None
    if isinstance(save, dict):
        line = save.get("line")
    if type(line) is int and line > 0:
        return line
    return 0


def _add_requests_for_pieces(
    requests: slices.SliceRequests, pieces: Sequence[TensorPiece], *, common: bool = False
) -> None:
    """Add requests for all of these pieces. Raises CheckpointError unless the checkpoint has all of
    them."""
    for piece in pieces:
        spec = piece.spec
        tensor_slice = slices.TensorSlice(spec.name, spec.offsets or (0,) * len(spec.shape), spec.shape)
        requests.add(tensor_slice, piece.tensor, common=common)


# Ranks that hold other names: pipeline stages. Found out in restore(), where collectives are allowed.


def update_placement_and_clear_state_cache(ranks: Ranks, state: State) -> bool:
    """Gather which ranks hold which tensors of the state, keep it in `ranks` and clear the state's
    cache if it has changed; return whether it has. A collective.

    Raises CheckpointError, the same on all ranks, for a name with other types or shapes on
    different ranks.
    """
    names: Mapping[str, TensorLayout] = {}
    with contextlib.suppress(StateNotSerializable):  # the first save says so
        names = state.names(ranks)
    changed = placement.gather_and_set_placement(ranks, names)
    if changed:
        state.clear_cache()
    return changed


# Where a checkpoint's data goes on: without one valid position of all ranks it does not count.


def require_same_data_positions(agreement: Agreement, objects: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Compare on all ranks the positions to which their loaders would go, before anything of the state
    is changed. A collective.

    A loader is an object with `position_of(state)`, which raises CheckpointError for a state that
    is no position, and `refuse_other(state)`, which does for one in other data. Raises
    CandidateRejected where positions differ or are invalid, and CheckpointError for other data.
    """
    loaders = {name: thing for name, thing in objects.items() if hasattr(thing, "position_of")}
    if not loaders:
        return

    def read_positions() -> tuple[None, tuple[dict[str, int], tuple[str, str | None] | None]]:
        positions: dict[str, int] = {}
        other = None
        for name, thing in loaders.items():
            if f"objects.{name}" in tree:  # else the state does not fit, which is found later
                saved = codec.decode(tree[f"objects.{name}"], _refuse_tensor)
                if not isinstance(saved, dict):
                    raise CheckpointError(f"{name} is a {type(saved).__name__}, expected a position in the data")
                positions[name] = thing.position_of(saved)
                try:
                    thing.refuse_other(saved)
                except CheckpointError as err:
                    other = other or (err.message, err.hint)
        return None, (positions, other)

    _, shared = agreement.run_and_gather_or_reject(read_positions)
    for name in loaders:
        rank_positions = [positions.get(name) for positions, _ in shared]
        if len(set(rank_positions)) > 1:
            rank = next(rank for rank, position in enumerate(rank_positions) if position != rank_positions[0])
            raise CandidateRejected(
                Reason(f"{name}: rank 0 is at {rank_positions[0]} in the data, rank {rank} at {rank_positions[rank]}")
            )
    for _, other in shared:
        if other is not None:
            raise agreement.misfit_error(*other)


def _refuse_tensor(name: str) -> torch.Tensor:
    raise CheckpointError(f"{name} is a tensor, expected a position in the data")
