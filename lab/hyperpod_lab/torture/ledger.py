"""What a run may be restored to, from what its lives have reported: the judge of the kill campaign."""

from __future__ import annotations

from typing import Any

from hyperpod_kit.checkpoint.saves.handle import LEVELS, SaveState

Order = tuple[int, int]  # (epoch, seq)


class RootHistory:
    """One root's history. `started_saves` are the (epoch, step) of which a save was ever started."""

    def __init__(self) -> None:
        self.started_saves: set[tuple[int, int]] = set()
        self.captured: Order = (0, 0)
        self.sealed: Order = (0, 0)
        self.durable: Order = (0, 0)

    def forget_captures_not_durable(self) -> None:
        """Note that the node's memory is lost: only what was durable must come back."""
        self.captured = self.sealed = self.durable

    def add_events(self, events: list[dict[str, Any]]) -> None:
        """Record the events of one life, of any rank."""
        for event in events:
            what = event["what"]
            if what == "saving":
                self.started_saves.add((event["epoch"], event["step"]))
            if what in LEVELS:
                at = (event["epoch"], event["seq"])
                self.captured = max(self.captured, at)
                if what != SaveState.CAPTURED:
                    self.sealed = max(self.sealed, at)
                if what == SaveState.DURABLE:
                    self.durable = max(self.durable, at)

    def find_violations(self, events: list[dict[str, Any]], *, was_killed: bool) -> list[str]:
        """Return what is wrong with the restore that these events report; call it before `add_events` of them.

        `was_killed`: a process of this life was killed, which may show as a start that fails because its agent
        has died.
        """
        for event in events:
            if event["what"] == "error":
                if was_killed and event["kind"] == "CheckpointError":
                    return []
                return [f"the start failed: {event['kind']}: {event['why']}"]
            if event["what"] == "fresh":
                return self._find_violations_of_fresh_start()
            if event["what"] == "restored":
                return self._find_violations_of_restore(event)
        return []  # killed before it got so far

    def _find_violations_of_fresh_start(self) -> list[str]:
        if self.sealed > (0, 0):
            return [f"started from scratch although {self.sealed} was sealed"]
        return []

    def _find_violations_of_restore(self, event: dict[str, Any]) -> list[str]:
        violations = []
        if event["wrong"]:
            violations.append(f"restored epoch {event['epoch']} step {event['step']} with wrong {event['wrong']}")
        if (event["epoch"], event["step"]) not in self.started_saves:
            violations.append(f"restored epoch {event['epoch']} step {event['step']}, which nobody saved")
        if (event["epoch"], event["seq"]) < self.sealed:
            passed_over = ""
            if event.get("rejected"):
                passed_over = f"; passed over: {event['rejected']}"
            violations.append(
                f"restored {(event['epoch'], event['seq'])} although {self.sealed} was sealed{passed_over}"
            )
        return violations
