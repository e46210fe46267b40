"""Which of several controllers acts, by the words of `scontrol ping`."""

from __future__ import annotations

import socket

import pytest

from hyperpod_kit.slurm.heads import SlurmHead, other_acting_controller, parse_ping, query_other_acting_controller
from tests.support.runner import RecordingRunner

BOTH = "Slurmctld(primary) at ip-10-1-0-1 is UP\nSlurmctld(backup) at ip-10-1-0-2.ec2.internal is UP\n"


def test_what_22_05_prints_of_a_controller_that_has_died() -> None:
    """As printed on machines, with a warning of Slurm's 22.05 below it."""
    said = (
        "Slurmctld(primary) at ip-10-1-41-18 is DOWN\nSlurmctld(backup) at ip-10-1-41-19 is UP\n"
        "*****************************************\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n"
    )
    assert parse_ping(said) == (SlurmHead("ip-10-1-41-18", False), SlurmHead("ip-10-1-41-19", True))


@pytest.mark.parametrize(
    ("said", "here", "elsewhere"),
    [
        (BOTH, "ip-10-1-0-1", ""),
        (BOTH, "ip-10-1-0-2", "ip-10-1-0-1"),
        (BOTH.replace("UP", "DOWN", 1), "ip-10-1-0-2", ""),
        (BOTH.replace("UP", "DOWN", 1), "ip-10-1-0-1", "ip-10-1-0-2"),
        (BOTH.replace("UP", "DOWN"), "ip-10-1-0-2", ""),
        (BOTH, "not-a-controller", ""),
        ("Slurmctld(primary) at head is UP\n", "other", ""),
        ("slurm_ping: \x1b]0;Slurmctld(primary) at a is UP; b\n", "a", ""),
        ("", "a", ""),
    ],
)
def test_exactly_one_acts_wherever_slurm_says_who_is_up(said: str, here: str, elsewhere: str) -> None:
    assert other_acting_controller(parse_ping(said), here) == elsewhere


def test_a_slurm_that_does_not_answer_keeps_nobody_from_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-1-0-2.ec2.internal")
    assert query_other_acting_controller(RecordingRunner({"scontrol ping": BOTH})) == "ip-10-1-0-1"
    assert query_other_acting_controller(RecordingRunner()) == ""
