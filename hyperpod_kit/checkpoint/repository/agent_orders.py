"""What an agent does with its rank's captures: by order of the coordinator, and as its workers' jobs end."""

from __future__ import annotations

import sys
from typing import Any, List, Optional

from hyperpod_kit.checkpoint.repository import agent_captures, control, coordinator
from hyperpod_kit.checkpoint.repository.agent_asked import Asked
from hyperpod_kit.checkpoint.repository.agent_captures import Captures, Held
from hyperpod_kit.checkpoint.repository.agent_head import Head
from hyperpod_kit.checkpoint.repository.agent_storage import Storage
from hyperpod_kit.checkpoint.repository.agent_work import Worker
from hyperpod_kit.checkpoint.repository.assemble import Report
from hyperpod_kit.checkpoint.repository.control import Key, Page
from hyperpod_kit.checkpoint.repository.failpoint import failpoint
from hyperpod_kit.checkpoint.repository.lines import Channel, Message
from hyperpod_kit.checkpoint.repository.local import Part


def key_of(value: Any) -> Key:
    """A capture's key, as a message has it."""
    return (int(value[0]), int(value[1]), str(value[2]))


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

    def _report(self, message: Message) -> None:
        """Tell the coordinator."""
        raise NotImplementedError

    def _report_again(self) -> None:
        """Say once more what is held."""
        raise NotImplementedError

    # --- the workers --------------------------------------------------------------------------------------------

    def _on_sealed(self, key: Key, page: Optional[Page], why: str) -> None:
        held = self.captures.get(key)
        assert held is not None, "what is being sealed is held"
        held.jobs.discard("seal")
        if page is None:
            self._report({"op": "skipped", "key": list(key), "why": why})
        else:
            self._report({"op": "sealed", "key": list(key)})
        self.captures.release()

    def _on_localized(self, key: Key, report: Optional[Report], why: str) -> None:
        held = self.captures.get(key)
        if held is not None:
            held.jobs.discard("write")
            held.part = Part(held.attempt, report) if report is not None else None
        if report is None:
            print(f"capture {key}: not on the node's disk: {why}", file=sys.stderr, flush=True)
            if why != self.told_local:
                self.told_local = why
                self.trainer.send({"ev": "trouble", "why": f"a save is not on the node's disk: {why}"})
        failpoint("agent.localized")
        self._report({"op": "local", "key": list(key), "there": report is not None})
        self.captures.release()

    def _on_pruned(self, key: Key, _: None, why: str) -> None:
        if why:
            print(f"old local checkpoints stay: {why}", file=sys.stderr, flush=True)

    def _on_written(self, key: Key, report: Optional[Report], why: str) -> None:
        held = self.captures.get(key)
        if held is not None:
            held.jobs -= {"write", "upload"}
            held.report = report
        if report is None:
            self._report({"op": "failed", "key": list(key), "why": why})
        else:
            failpoint("agent.written")
            self._persisted(report, key)
        self.captures.release()

    def _on_looked(self, key: Key, attempt: Optional[str], why: str) -> None:
        assert self.head is not None
        self.head.looked(key, attempt, why)

    def _on_committed(self, key: Key, attempt: Optional[str], why: str) -> None:
        assert self.head is not None
        self.head.committed(key, attempt, why)

    def _on_kept(self, _: Key, left: Optional[List[str]], why: str) -> None:
        assert self.head is not None
        self.head.kept(left, why)

    def _on_told(self, _: Key, said: None, why: str) -> None:
        assert self.head is not None
        self.head.counted.said(why)

    def _on_swept(self, _: Key, runs: Optional[List[str]], why: str) -> None:
        if why:
            print(f"segments of dead runs stay: {why}", file=sys.stderr, flush=True)

    # --- orders -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Message) -> None:
        op, note = message["op"], message["note"]
        if op == coordinator.BYE:
            self.bye = True
            return
        if op == coordinator.AGAIN:
            self._report_again()
            return
        key = key_of(message["key"])
        held = self.captures.get(key)
        failpoint("agent.ordered")
        if op == coordinator.PERSIST:
            self._persist(key, held)
        elif op == coordinator.LOCAL:
            self._localized(key, held)
        elif op == coordinator.UPLOAD:
            self._upload(key, held)
        elif op == coordinator.WHICH:
            self.asked.ask(key, note, message["ranks"])
        elif op == coordinator.SEALED:
            if held is not None:
                held.full = True
            self.trainer.send({"ev": "sealed", "key": list(key)})
        elif op == coordinator.COMMITTED:
            if held is not None and held.slot is not None:
                held.slot.move(control.SEALED, durable=True)
            self._finish(key, agent_captures.DURABLE, note)
        else:
            self._finish(key, op, note)
        self.captures.release()

    def _persist(self, key: Key, held: Optional[Held]) -> None:
        if held is not None and held.report is not None:
            self._persisted(held.report, key)
        elif held is not None and held.part is not None:
            self._report({"op": "local", "key": list(key), "there": True})
        elif held is None or held.slot is None:
            self._report({"op": "failed", "key": list(key), "why": "it is not in memory any more"})
        elif "write" not in held.jobs:  # asked again, after an agent was lost
            held.jobs.add("write")
            event, job = (
                ("written", self.storage.write)
                if self.storage.local is None
                else ("localized", self.storage.write_local)
            )
            self.writer.submit(event, key, job(held))

    def _upload(self, key: Key, held: Optional[Held]) -> None:
        if held is None:
            self._report({"op": "failed", "key": list(key), "why": "it is not here any more"})
        elif held.report is not None:
            self._persisted(held.report, key)
        elif "upload" not in held.jobs:
            held.jobs.add("upload")
            self.uploader.submit("written", key, self.storage.write(held, upload=True))

    def _persisted(self, report: Report, key: Key) -> None:
        news = report.page.layout != self.told_layout
        self.told_layout = report.page.layout
        self._report({"op": "persisted", "key": list(key), "report": report.to_json(pieces=news)})

    def _localized(self, key: Key, held: Optional[Held]) -> None:
        """Every rank has it on its node's disk."""
        if held is not None and not held.ended:
            held.outcome = agent_captures.LOCAL
        self.trainer.send({"ev": agent_captures.LOCAL, "key": list(key)})
        if held is not None and held.part is not None:
            busy = self.captures.unended_parts()
            self.writer.submit("pruned", key, self.storage.prune_local(held.part.attempt, busy))

    def _finish(self, key: Key, outcome: str, note: str) -> None:
        """An end of no use overrides `failed`: what some rank cannot seal is of no use in memory either."""
        held = self.captures.get(key)
        if held is not None and (not held.ended or outcome in agent_captures.USELESS):
            held.outcome = outcome
        kind = agent_captures.SAID.get(outcome, outcome)
        self.trainer.send({"ev": kind, "key": list(key), "note": note, "was": outcome})
