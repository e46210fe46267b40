"""What an agent does with its rank's captures: by order of the coordinator, and as its workers' jobs end."""

from __future__ import annotations

import sys
from typing import Callable, Optional, Sequence, Set

from hyperpod_kit.checkpoint.agent.persist.local import Part
from hyperpod_kit.checkpoint.agent.process.agent_captures import Capture, Captures
from hyperpod_kit.checkpoint.agent.process.agent_events import (
    LocalResult,
    PruneResult,
    RankResult,
    SealResult,
    SweepResult,
    WriteResult,
)
from hyperpod_kit.checkpoint.agent.process.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.process.worker import Workers
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome, assert_never
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import (
    Order,
    OrderKind,
    RankCaptured,
    RankFailed,
    RankLocal,
    RankPersisted,
    RankReport,
    RankSealed,
    RankSkipped,
    RankTensors,
    RankText,
)
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    END_EVENTS,
    AgentEvent,
    AgentTrouble,
    SaveLocal,
    SaveSealed,
    TensorQuery,
)
from hyperpod_kit.checkpoint.agent.reports import replicas
from hyperpod_kit.checkpoint.agent.reports.replicas import Tensors
from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportEncoder
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report
from hyperpod_kit.checkpoint.agent.shm.control_page import Key, SlotState
from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from hyperpod_kit.checkpoint.repository.store.base import NO_ROOM
from hyperpod_kit.checkpoint.repository.store.failpoint import failpoint
from hyperpod_kit.errors import CheckpointError

_END_OUTCOMES = {
    OrderKind.COMMITTED: CaptureOutcome.DURABLE,
    OrderKind.DROPPED: CaptureOutcome.DROPPED,
    OrderKind.FAILED: CaptureOutcome.FAILED,
    OrderKind.OVERTAKEN: CaptureOutcome.OVERTAKEN,
    OrderKind.REFUSED: CaptureOutcome.REFUSED,
}


class OrderExecutor:
    """Rank 0's agent orders, this one does it with its workers, and reports. All of it runs in the main thread."""

    def __init__(
        self,
        rank: int,
        trainer: Channel,
        captures: Captures,
        storage: Storage,
        workers: Workers,
        report: Callable[[RankReport], None],
    ) -> None:
        self._trainer, self._captures, self._storage = trainer, captures, storage
        self._workers, self._report = workers, report
        self.tensor_queries = TensorQueries(rank, trainer, report)
        self._reported_local_failure = ""
        self._report_encoder = ReportEncoder(inline_texts=rank == 0)

    def _send_event(self, event: AgentEvent) -> None:
        """Tell the trainer, if it is there."""
        self._trainer.send(event.to_json())

    def resend_capture_reports(self) -> None:
        """Report again all captures that have had no end: rank 0's agent has forgotten them, or never knew."""
        self._report_encoder.forget_sent_layout()
        for capture in sorted(self._captures, key=lambda capture: capture.key):
            if capture.ended:
                continue
            replica_digests = None
            if capture.slot is not None:
                replica_digests = replicas.digests_by_holders_in_slot(capture.slot)
            self._report(RankCaptured(capture.key, True, replica_digests, capture.memory))
            if "seal" not in capture.jobs:
                self._report(RankSealed(capture.key))

    # --- the workers --------------------------------------------------------------------------------------------

    def on_result(self, result: RankResult) -> None:
        """What a job for this rank gave."""
        if isinstance(result, SealResult):
            self._on_sealed(result)
        elif isinstance(result, LocalResult):
            self._on_local_written(result)
        elif isinstance(result, WriteResult):
            self._on_written(result)
        elif isinstance(result, PruneResult):
            if result.failure:
                print(f"old local checkpoints were not deleted: {result.failure}", file=sys.stderr, flush=True)
        elif isinstance(result, SweepResult):
            if result.failure:
                print(f"shared memory of dead runs was not freed: {result.failure}", file=sys.stderr, flush=True)
            for line in result.losses or ():
                print(line, file=sys.stderr, flush=True)
                self._send_event(AgentTrouble(f"captures of another run in this node's memory: {line}"))
        else:
            assert_never(result)

    def _on_sealed(self, result: SealResult) -> None:
        key, page, failure, _ = result
        capture = self._captures.get(key)
        assert capture is not None, "what is being sealed is held"
        capture.jobs.discard("seal")
        if page is None:
            self._report(RankSkipped(key, failure))
        else:
            self._report(RankSealed(key))
        self._captures.free_unneeded_slots_and_forget_ended()

    def _on_local_written(self, result: LocalResult) -> None:
        key, report, failure, _ = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("write")
            capture.part = Part(capture.checkpoint_id, report) if report is not None else None
        if report is None:
            print(f"capture {key}: not on the node's disk: {failure}", file=sys.stderr, flush=True)
            if failure != self._reported_local_failure:
                self._reported_local_failure = failure
                self._send_event(AgentTrouble(f"a save is not on the node's disk: {failure}"))
        failpoint("agent.localized")
        self._report(RankLocal(key, report is not None))
        self._captures.free_unneeded_slots_and_forget_ended()

    def _on_written(self, result: WriteResult) -> None:
        key, report, failure, error_number = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs -= {"write", "upload"}
            capture.report = report
        if report is None:
            self._report(RankFailed(key, failure, full=error_number in NO_ROOM))
        else:
            failpoint("agent.written")
            self._report_persisted(report, key)
        self._captures.free_unneeded_slots_and_forget_ended()

    # --- orders -------------------------------------------------------------------------------------------------

    def on_order(self, order: Order) -> None:
        """Do what an order says about a capture."""
        kind, key, note, ranks = order
        assert key is not None, "it is about a capture"
        capture = self._captures.get(key)
        failpoint("agent.ordered")
        if kind is OrderKind.PERSIST:
            self._submit_write_or_report_state(key, capture)
        elif kind is OrderKind.LOCAL:
            self._mark_local_and_prune_local_disk(key, capture)
        elif kind is OrderKind.UPLOAD:
            self._submit_upload_or_report_state(key, capture)
        elif kind is OrderKind.SEND_TEXT:
            self._report(RankText(key, note, self._report_encoder.look_up_text_and_inline_from_now(note)))
        elif kind is OrderKind.COMPARE:
            self.tensor_queries.query_trainer(key, note, ranks)
        elif kind is OrderKind.SEALED:
            if capture is not None:
                capture.is_sealed_by_all = True
            self._send_event(SaveSealed(key))
        elif (
            kind is OrderKind.COMMITTED
            or kind is OrderKind.DROPPED
            or kind is OrderKind.FAILED
            or kind is OrderKind.OVERTAKEN
            or kind is OrderKind.REFUSED
        ):
            if kind is OrderKind.COMMITTED and capture is not None and capture.slot is not None:
                capture.slot.transition(SlotState.SEALED, durable=True)
            self._set_outcome_and_notify_trainer(key, _END_OUTCOMES[kind], note)
        elif kind is OrderKind.CHECK_COMMITTED or kind is OrderKind.COMMIT or kind is OrderKind.CLEAR:
            raise AssertionError(f"{order} is for rank 0's agent itself")
        elif kind is OrderKind.SHUTDOWN or kind is OrderKind.RESYNC or kind is OrderKind.TAKEN:
            raise AssertionError(f"{order} is about no capture")
        else:
            assert_never(kind)
        self._captures.free_unneeded_slots_and_forget_ended()

    def _submit_write_or_report_state(self, key: Key, capture: Optional[Capture]) -> None:
        local = self._storage.local is not None
        if capture is not None and local and (capture.part is not None or capture.report is not None):
            # Also where storage has it already: what is asked for is the tier before it, and `upload` comes then.
            self._report(RankLocal(key, capture.part is not None))
        elif capture is not None and capture.report is not None:
            self._report_persisted(capture.report, key)
        elif capture is None or capture.slot is None:
            self._report(RankFailed(key, "it is not in memory any more"))
        elif "write" not in capture.jobs:  # asked again, after an agent was lost
            capture.jobs.add("write")
            if local:
                self._workers.writer.submit(LocalResult, key, self._storage.write_local(capture))
            else:
                self._workers.writer.submit(WriteResult, key, self._storage.write(capture))

    def _submit_upload_or_report_state(self, key: Key, capture: Optional[Capture]) -> None:
        if capture is None:
            self._report(RankFailed(key, "it is not here any more"))
        elif capture.report is not None:
            self._report_persisted(capture.report, key)
        elif "upload" not in capture.jobs:
            capture.jobs.add("upload")
            self._workers.uploader.submit(WriteResult, key, self._storage.upload_to_storage(capture))

    def _report_persisted(self, report: Report, key: Key) -> None:
        try:
            body = self._report_encoder.encode(report)
        except CheckpointError as err:
            self._report(RankFailed(key, str(err)))
        else:
            self._report(RankPersisted(key, body))

    def _mark_local_and_prune_local_disk(self, key: Key, capture: Optional[Capture]) -> None:
        """Every rank has it on its node's disk."""
        if capture is not None and not capture.ended:
            capture.outcome = CaptureOutcome.LOCAL
        self._send_event(SaveLocal(key))
        if capture is not None and capture.part is not None:
            busy = self._captures.local_checkpoint_ids_awaiting_upload()
            self._workers.writer.submit(
                PruneResult, key, self._storage.remove_all_but_newest_local_parts(capture.part.checkpoint_id, busy)
            )

    def _set_outcome_and_notify_trainer(self, key: Key, outcome: CaptureOutcome, note: str) -> None:
        """Set the outcome of a capture and send it to the trainer. An outcome of no use replaces an earlier end:
        what some rank cannot seal is of no use in memory either."""
        capture = self._captures.get(key)
        if capture is not None and (not capture.ended or outcome.is_dropped_or_refused):
            capture.outcome = outcome
        self._send_event(END_EVENTS[outcome](key, note, outcome))


# What an agent asks its trainer: in which tensor it differs from another rank. See replicas.


class TensorQueries:
    """Questions to the trainer at the other end of `trainer`; each is answered through `report` exactly once."""

    def __init__(self, rank: int, trainer: Channel, report: Callable[[RankTensors], None]) -> None:
        self._rank = rank
        self._trainer = trainer
        self._report = report
        self._pending: Set[Key] = set()

    def query_trainer(self, key: Key, holders: str, ranks: Sequence[int]) -> None:
        """Ask the trainer which tensors of that capture it holds together with these holders, if this rank is one
        of `ranks`."""
        if self._rank not in ranks:
            return
        self._pending.add(key)
        if not self._trainer.send(TensorQuery(key, holders).to_json()):
            self.report_tensors_if_pending(key, None)

    def report_tensors_if_pending(self, key: Key, tensors: Tensors) -> None:
        if key in self._pending:
            self._pending.discard(key)
            self._report(RankTensors(key, tensors))

    def report_none_for_all_pending(self) -> None:
        """Report None for all pending queries: the trainer is gone."""
        for key in sorted(self._pending):
            self.report_tensors_if_pending(key, None)
