from __future__ import annotations

from hyperpod_kit.job.exits import Exit
from hyperpod_kit.job.lifeline import BYE
from hyperpod_kit.job.supervise import _vanished


def test_a_machine_that_died_and_is_back_is_told_from_a_rank_that_failed() -> None:
    record = Exit(0, "n1", "", 1, None, 0.0, 1.0)
    words = {"n1": "", "n2": "", "n3": BYE, "n4": ""}
    assert _vanished({"n1", "n2", "n3"}, words, [record]) == {"n2"}
