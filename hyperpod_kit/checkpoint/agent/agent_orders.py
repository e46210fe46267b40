"""What an agent does with its rank's captures: by order of the coordinator, and as its workers' jobs end."""

from __future__ import annotations

import sys
from typing import Callable, Optional

from hyperpod_kit.checkpoint.agent import replicas
from hyperpod_kit.checkpoint.agent.agent_asked import Asked
from hyperpod_kit.checkpoint.agent.agent_captures import Capture, Captures
from hyperpod_kit.checkpoint.agent.agent_events import (
    LocalResult,
    OwnResult,
    PruneResult,
    SealResult,
    SweepResult,
    WriteResult,
)
from hyperpod_kit.checkpoint.agent.agent_storage import Storage
from hyperpod_kit.checkpoint.agent.channel import Channel
from hyperpod_kit.checkpoint.agent.control_page import Key, SlotState
from hyperpod_kit.checkpoint.agent.local import Part
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome, never
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
    RankText,
)
from hyperpod_kit.checkpoint.agent.protocol.trainer_channel import (
    END_EVENTS,
    AgentEvent,
    AgentTrouble,
    SaveLocal,
    SaveSealed,
)
from hyperpod_kit.checkpoint.agent.report_texts import ReportTeller
from hyperpod_kit.checkpoint.agent.shard_report import Report
from hyperpod_kit.checkpoint.agent.worker import Workers
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.store.base import NO_ROOM
from hyperpod_kit.errors import CheckpointError

_ENDS = {
    OrderKind.COMMITTED: CaptureOutcome.DURABLE,
    OrderKind.DROPPED: CaptureOutcome.DROPPED,
    OrderKind.FAILED: CaptureOutcome.FAILED,
    OrderKind.OVERTAKEN: CaptureOutcome.OVERTAKEN,
    OrderKind.REFUSED: CaptureOutcome.REFUSED,
}


class Orders:
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
        self.asked = Asked(rank, trainer, report)
        self._told_local = ""
        self._teller = ReportTeller(outright=rank == 0)

    def _tell(self, event: AgentEvent) -> None:
        """Tell the trainer, if it is there."""
        self._trainer.send(event.to_json())

    def report_again(self) -> None:
        """Say once more what is held and has had no end: whoever decides has forgotten it, or never knew."""
        self._teller.forget()
        for capture in sorted(self._captures, key=lambda capture: capture.key):
            if capture.ended:
                continue
            same = replicas.of_slot(capture.slot) if capture.slot is not None else None
            self._report(RankCaptured(capture.key, True, same, capture.memory))
            if "seal" not in capture.jobs:
                self._report(RankSealed(capture.key))

    # --- the workers --------------------------------------------------------------------------------------------

    def on_result(self, result: OwnResult) -> None:
        """What a job for this rank gave."""
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
            for line in result.found or ():
                print(line, file=sys.stderr, flush=True)
                self._tell(AgentTrouble(f"what another run left in this node's memory: {line}"))
        else:
            never(result)

    def _on_sealed(self, result: SealResult) -> None:
        key, page, why, _ = result
        capture = self._captures.get(key)
        assert capture is not None, "what is being sealed is held"
        capture.jobs.discard("seal")
        if page is None:
            self._report(RankSkipped(key, why))
        else:
            self._report(RankSealed(key))
        self._captures.release()

    def _on_localized(self, result: LocalResult) -> None:
        key, report, why, _ = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs.discard("write")
            capture.part = Part(capture.attempt, report) if report is not None else None
        if report is None:
            print(f"capture {key}: not on the node's disk: {why}", file=sys.stderr, flush=True)
            if why != self._told_local:
                self._told_local = why
                self._tell(AgentTrouble(f"a save is not on the node's disk: {why}"))
        failpoint("agent.localized")
        self._report(RankLocal(key, report is not None))
        self._captures.release()

    def _on_written(self, result: WriteResult) -> None:
        key, report, why, number = result
        capture = self._captures.get(key)
        if capture is not None:
            capture.jobs -= {"write", "upload"}
            capture.report = report
        if report is None:
            self._report(RankFailed(key, why, full=number in NO_ROOM))
        else:
            failpoint("agent.written")
            self._persisted(report, key)
        self._captures.release()

    # --- orders -------------------------------------------------------------------------------------------------

    def on_order(self, order: Order) -> None:
        """What is to become of a capture."""
        kind, key, note, ranks = order
        assert key is not None, "it is about a capture"
        capture = self._captures.get(key)
        failpoint("agent.ordered")
        if kind is OrderKind.PERSIST:
            self._persist(key, capture)
        elif kind is OrderKind.LOCAL:
            self._localized(key, capture)
        elif kind is OrderKind.UPLOAD:
            self._upload(key, capture)
        elif kind is OrderKind.TELL:
            self._report(RankText(key, note, self._teller.text(note)))
        elif kind is OrderKind.WHICH:
            self.asked.ask(key, note, ranks)
        elif kind is OrderKind.SEALED:
            if capture is not None:
                capture.full = True
            self._tell(SaveSealed(key))
        elif (
            kind is OrderKind.COMMITTED
            or kind is OrderKind.DROPPED
            or kind is OrderKind.FAILED
            or kind is OrderKind.OVERTAKEN
            or kind is OrderKind.REFUSED
        ):
            if kind is OrderKind.COMMITTED and capture is not None and capture.slot is not None:
                capture.slot.move(SlotState.SEALED, durable=True)
            self._finish(key, _ENDS[kind], note)
        elif kind is OrderKind.LOOK or kind is OrderKind.COMMIT or kind is OrderKind.CLEAR:
            raise AssertionError(f"{order} is for rank 0's agent itself")
        elif kind is OrderKind.BYE or kind is OrderKind.AGAIN or kind is OrderKind.TAKEN:
            raise AssertionError(f"{order} is about no capture")
        else:
            never(kind)
        self._captures.release()

    def _persist(self, key: Key, capture: Optional[Capture]) -> None:
        local = self._storage.local is not None
        if capture is not None and local and (capture.part is not None or capture.report is not None):
            # Also where storage has it already: what is asked for is the tier before it, and `upload` comes then.
            self._report(RankLocal(key, capture.part is not None))
        elif capture is not None and capture.report is not None:
            self._persisted(capture.report, key)
        elif capture is None or capture.slot is None:
            self._report(RankFailed(key, "it is not in memory any more"))
        elif "write" not in capture.jobs:  # asked again, after an agent was lost
            capture.jobs.add("write")
            if local:
                self._workers.writer.submit(LocalResult, key, self._storage.write_local(capture))
            else:
                self._workers.writer.submit(WriteResult, key, self._storage.write(capture))

    def _upload(self, key: Key, capture: Optional[Capture]) -> None:
        if capture is None:
            self._report(RankFailed(key, "it is not here any more"))
        elif capture.report is not None:
            self._persisted(capture.report, key)
        elif "upload" not in capture.jobs:
            capture.jobs.add("upload")
            self._workers.uploader.submit(WriteResult, key, self._storage.upload(capture))

    def _persisted(self, report: Report, key: Key) -> None:
        try:
            said = self._teller.said(report)
        except CheckpointError as err:
            self._report(RankFailed(key, str(err)))
        else:
            self._report(RankPersisted(key, said))

    def _localized(self, key: Key, capture: Optional[Capture]) -> None:
        """Every rank has it on its node's disk."""
        if capture is not None and not capture.ended:
            capture.outcome = CaptureOutcome.LOCAL
        self._tell(SaveLocal(key))
        if capture is not None and capture.part is not None:
            busy = self._captures.unended_parts()
            self._workers.writer.submit(PruneResult, key, self._storage.prune_local(capture.part.attempt, busy))

    def _finish(self, key: Key, outcome: CaptureOutcome, note: str) -> None:
        """An end of no use overrides `failed`: what some rank cannot seal is of no use in memory either."""
        capture = self._captures.get(key)
        if capture is not None and (not capture.ended or outcome.is_useless):
            capture.outcome = outcome
        self._tell(END_EVENTS[outcome](key, note, outcome))
