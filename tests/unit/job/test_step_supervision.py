from __future__ import annotations

import select
from pathlib import Path
from typing import Any, Optional, Sequence, cast
from unittest import mock

from hyperpod_kit.job.base.exits import Exit
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.step.lifeline import BYE, SERVES, Lifeline, Lifelines
from hyperpod_kit.job.step.options import RunOptions
from hyperpod_kit.job.step.step_evidence import vanished
from hyperpod_kit.job.step.step_retry import StepRetry
from hyperpod_kit.job.step.step_supervision import StepSupervision
from hyperpod_kit.job.step.supervision_rules import SupervisionRules


def test_a_machine_that_died_and_is_back_is_told_from_a_rank_that_failed() -> None:
    record = Exit(0, "n1", "", 1, None, 0.0, 1.0)
    words = {"n1": "", "n2": "", "n3": BYE, "n4": ""}
    assert vanished({"n1", "n2", "n3"}, words, [record]) == {"n2"}


class Running:
    """A step that runs for so many looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def poll(self) -> Optional[int]:
        self._looks -= 1
        return None if self._looks > 0 else 0


class Looking(Signals):
    """Does not wait, and counts the turns in which it would not have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = 0

    def wait(self, seconds: float, files: Sequence[int] = ()) -> None:
        poll = select.poll()
        for fd in files:
            poll.register(fd, select.POLLIN)
        self.at_once += bool(poll.poll(300))


def test_a_node_that_has_connected_does_not_keep_job_run_from_waiting_on_hyperpod(tmp_path: Path) -> None:
    """There nothing is ended for what a node says, but it must be heard all the same."""
    lines, signals = Lifelines("127.0.0.1"), Looking()
    line = Lifeline(lines.environment, "n1")
    line.say(SERVES)
    retry = mock.Mock(spec=StepRetry)
    retry.record_messages_and_count_relaunches.return_value, retry.ended = False, False
    rules = SupervisionRules(None, mock.Mock(), lines, retry=retry)
    context = mock.Mock(options=RunOptions(root=str(tmp_path), command=("true",)), signals=signals)
    seen = StepSupervision(cast(Any, Running(12)), "a", rules, context).run()
    assert seen.code == 0 and signals.at_once <= 4 and lines.status_by_node == {"n1": SERVES}
    line.end(BYE)
