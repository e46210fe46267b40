"""What an agent does with its rank's captures: by order of the coordinator, and as its workers' jobs end."""

from __future__ import annotations

import sys
from typing import Optional, Union

from hyperpod_kit.checkpoint.agent.agent_asked import Asked
from hyperpod_kit.checkpoint.agent.agent_captures import Captures, HeldCapture
from hyperpod_kit.checkpoint.agent.agent_events import (
    CommitResult,
    JobResult,
    LocalResult,
    LookResult,
    LossNoteResult,
    PruneResult,
    RetentionResult,
    SealResult,
    SweepResult,
    WriteResult,
)
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.assemble import Report
from hyperpod_kit.checkpoint.agent.channel import Channel
from hyperpod_kit.checkpoint.agent.control_page import Key, SlotState
from hyperpod_kit.checkpoint.agent.leader import Head
from hyperpod_kit.checkpoint.agent.local import Part
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome, never
from hyperpod_kit.checkpoint.agent.protocol.rank_channel import (
    Order,
    OrderKind,
    RankFailed,
    RankLocal,
    RankPersisted,
    RankReport,
    RankSealed,
    RankSkipped,
)
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    END_EVENTS,
    AgentEvent,
    AgentTrouble,
    SaveLocal,
    SaveSealed,
)
from hyperpod_kit.checkpoint.agent.worker import Worker
from hyperpod_kit.checkpoint.repository.failpoint import failpoint

_ENDS = {
    OrderKind.COMMITTED: CaptureOutcome.DURABLE,
    OrderKind.DROPPED: CaptureOutcome.DROPPED,
    OrderKind.FAILED: CaptureOutcome.FAILED,
    OrderKind.OVERTAKEN: CaptureOutcome.OVERTAKEN,
    OrderKind.REFUSED: CaptureOutcome.REFUSED,
}


class Orders:
    """The agent's half that works; `agent.Agent` is the one that listens. All of it runs in the main thread."""

    trainer: Channel
    captures: Captures
    storage: Storage
    asked: Asked
    head: Optional[Head]
    sealer: Worker
    writer: Worker
    uploader: Worker
    bye: bool
    told_layout: str
    told_local: str

    def _report(self, report: RankReport) -> None:
        """Tell the coordinator."""
        raise NotImplementedError

    def _report_again(self) -> None:
        """Say once more what is held."""
        raise NotImplementedError

    def _tell(self, event: AgentEvent) -> bool:
        """Tell the trainer; False when it is gone."""
        return self.trainer.send(event.to_json())

    # --- the workers --------------------------------------------------------------------------------------------

    def _on_result(self, result: JobResult) -> None:
        if isinstance(result, SealResult):
            self._on_sealed(result)
        elif isinstance(result, LocalResult):
            self._on_localized(result)
        elif isinstance(result, WriteResult):
            self._on_written(result)
        elif isinstance(result, PruneResult):
            if result.why:
                print(f"old local checkpoints stay: {result.why}", file=sys.stderr, flush=True)
        elif isinstance(result, SweepResult):
            if result.why:
                print(f"segments of dead runs stay: {result.why}", file=sys.stderr, flush=True)
        else:
            self._on_result_for_head(result)

    def _on_result_for_head(self, result: Union[LookResult, CommitResult, RetentionResult, LossNoteResult]) -> None:
        assert self.head is not None
        if isinstance(result, LookResult):
            self.head.looked(*result)
        elif isinstance(result, CommitResult):
            self.head.committed(*result)
        elif isinstance(result, RetentionResult):
            self.head.kept(result.found, result.why)
        elif isinstance(result, LossNoteResult):
            self.head.counted.said(result.why)
        else:
            never(result)

    def _on_sealed(self, result: SealResult) -> None:
        key, page, why = result
        held = self.captures.get(key)
        assert held is not None, "what is being sealed is held"
        held.jobs.discard("seal")
        if page is None:
            self._report(RankSkipped(key, why))
        else:
            self._report(RankSealed(key))
        self.captures.release()

    def _on_localized(self, result: LocalResult) -> None:
        key, report, why = result
        held = self.captures.get(key)
        if held is not None:
            held.jobs.discard("write")
            held.part = Part(held.attempt, report) if report is not None else None
        if report is None:
            print(f"capture {key}: not on the node's disk: {why}", file=sys.stderr, flush=True)
            if why != self.told_local:
                self.told_local = why
                self._tell(AgentTrouble(f"a save is not on the node's disk: {why}"))
        failpoint("agent.localized")
        self._report(RankLocal(key, report is not None))
        self.captures.release()

    def _on_written(self, result: WriteResult) -> None:
        key, report, why = result
        held = self.captures.get(key)
        if held is not None:
            held.jobs -= {"write", "upload"}
            held.report = report
        if report is None:
            self._report(RankFailed(key, why))
        else:
            failpoint("agent.written")
            self._persisted(report, key)
        self.captures.release()

    # --- orders -------------------------------------------------------------------------------------------------

    def _on_order(self, order: Order) -> None:
        kind, key, note, ranks = order
        if kind is OrderKind.BYE:
            self.bye = True
            return
        if kind is OrderKind.AGAIN:
            self._report_again()
            return
        assert key is not None, "all other orders are about a capture"
        held = self.captures.get(key)
        failpoint("agent.ordered")
        if kind is OrderKind.PERSIST:
            self._persist(key, held)
        elif kind is OrderKind.LOCAL:
            self._localized(key, held)
        elif kind is OrderKind.UPLOAD:
            self._upload(key, held)
        elif kind is OrderKind.WHICH:
            self.asked.ask(key, note, ranks)
        elif kind is OrderKind.SEALED:
            if held is not None:
                held.full = True
            self._tell(SaveSealed(key))
        elif (
            kind is OrderKind.COMMITTED
            or kind is OrderKind.DROPPED
            or kind is OrderKind.FAILED
            or kind is OrderKind.OVERTAKEN
            or kind is OrderKind.REFUSED
        ):
            if kind is OrderKind.COMMITTED and held is not None and held.slot is not None:
                held.slot.move(SlotState.SEALED, durable=True)
            self._finish(key, _ENDS[kind], note)
        elif kind is OrderKind.LOOK or kind is OrderKind.COMMIT:
            raise AssertionError(f"{order} is for rank 0's agent itself")
        else:
            never(kind)
        self.captures.release()

    def _persist(self, key: Key, held: Optional[HeldCapture]) -> None:
        if held is not None and held.report is not None:
            self._persisted(held.report, key)
        elif held is not None and held.part is not None:
            self._report(RankLocal(key, True))
        elif held is None or held.slot is None:
            self._report(RankFailed(key, "it is not in memory any more"))
        elif "write" not in held.jobs:  # asked again, after an agent was lost
            held.jobs.add("write")
            if self.storage.local is None:
                self.writer.submit(WriteResult, key, self.storage.write(held))
            else:
                self.writer.submit(LocalResult, key, self.storage.write_local(held))

    def _upload(self, key: Key, held: Optional[HeldCapture]) -> None:
        if held is None:
            self._report(RankFailed(key, "it is not here any more"))
        elif held.report is not None:
            self._persisted(held.report, key)
        elif "upload" not in held.jobs:
            held.jobs.add("upload")
            self.uploader.submit(WriteResult, key, self.storage.write(held, upload=True))

    def _persisted(self, report: Report, key: Key) -> None:
        news = report.page.shard.layout != self.told_layout
        self.told_layout = report.page.shard.layout
        self._report(RankPersisted(key, report.to_json(pieces=news)))

    def _localized(self, key: Key, held: Optional[HeldCapture]) -> None:
        """Every rank has it on its node's disk."""
        if held is not None and not held.ended:
            held.outcome = CaptureOutcome.LOCAL
        self._tell(SaveLocal(key))
        if held is not None and held.part is not None:
            busy = self.captures.unended_parts()
            self.writer.submit(PruneResult, key, self.storage.prune_local(held.part.attempt, busy))

    def _finish(self, key: Key, outcome: CaptureOutcome, note: str) -> None:
        """An end of no use overrides `failed`: what some rank cannot seal is of no use in memory either."""
        held = self.captures.get(key)
        if held is not None and (not held.ended or outcome.is_useless):
            held.outcome = outcome
        self._tell(END_EVENTS[outcome](key, note, outcome))
