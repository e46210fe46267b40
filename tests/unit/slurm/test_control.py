from __future__ import annotations

import time
from typing import Optional

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.slurm import control, hyperpod
from hyperpod_kit.slurm.job_id import JobId
from tests.support.runner import RecordingRunner

NODES = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.1.41.18 NodeHostName=n1 Port=6818 Version=22.05.8"
    " OS=Linux 6.1.0 #1 SMP State=ALLOCATED ThreadsPerCore=1 Partitions=all \n"
    "NodeName=n2 NodeAddr=10.1.41.19 NodeHostName=n2 State=DOWN*+CLOUD Reason=Not responding [slurm@2026-11-20]\n"
    "NodeName=n3 NodeAddr=10.1.41.20 NodeHostName=n3 State=MIXED+DRAIN Reason=hyperpod-kit:mount:fsx:hung"
    " [root@2026-11-20T10:00:00]\n"
)


def test_nodes_say_where_slurmd_is_and_what_slurm_thinks() -> None:
    runner = RecordingRunner({"scontrol -o show node n[1-3]": NODES})
    found = control.query_known_nodes(runner, ["n1", "n2", "n3"])
    assert [(node.address, node.port, node.can_start_steps, node.is_down) for node in found.values()] == [
        ("10.1.41.18", 6818, True, False),
        ("10.1.41.19", 6818, False, True),
        ("10.1.41.20", 6818, False, False),
    ]
    assert found["n3"].reason == "hyperpod-kit:mount:fsx:hung [root@2026-11-20T10:00:00]"


@pytest.mark.parametrize(
    ("state", "usable", "down"),
    [
        ("IDLE+CLOUD", True, False),
        ("ALLOCATED+POWERED_UP", True, False),
        ("IDLE+CLOUD+POWERED_DOWN", False, False),
        ("ALLOCATED*", False, True),
        ("FAIL", False, True),
        ("ALLOCATED+FAIL", False, True),
        ("UNKNOWN", False, False),
    ],
)
def test_states_of_nodes(state: str, usable: bool, down: bool) -> None:
    node = control.NodeRecord("n1", "n1", 6818, state)
    assert (node.can_start_steps, node.is_down) == (usable, down)


@pytest.mark.parametrize(
    ("state", "word", "awaited"),
    [
        ("MIXED", "None", True),
        ("UNKNOWN", "None", True),
        ("MIXED", "2026-11-23T01:32:15", False),
        ("DOWN*", "None", False),
        ("IDLE+CLOUD+POWERED_DOWN", "None", False),
    ],
)
def test_nodes_that_have_not_registered_since_slurmctld_was_started(state: str, word: str, awaited: bool) -> None:
    """As 22.05 and 24.11 print it: the state is that of before, and no step is started there."""
    runner = RecordingRunner({"scontrol": f"NodeName=n1 State={state} BootTime={word} SlurmdStartTime={word}\n"})
    assert control.query_known_nodes(runner, ["n1"])["n1"].is_unregistered_since_slurmctld_start == awaited


def test_no_answer_is_an_error_and_not_an_empty_cluster() -> None:
    with pytest.raises(RunError):
        control.query_known_nodes(RecordingRunner({"scontrol": (1, "Unable to contact slurm controller")}), ["n1"])


@pytest.mark.parametrize(
    ("word", "booted"), [("2026-11-22T10:09:48", 1.0), ("None", None), ("Unknown", None), ("2026-11-22T10:09", None)]
)
def test_a_boot_is_said_in_whole_seconds_and_one_of_them_may_be_missing(word: str, booted: Optional[float]) -> None:
    """A machine that was started half a second after an attempt must not look as if it had been there before it."""
    runner = RecordingRunner({"scontrol": f"NodeName=n1 State=IDLE BootTime={word}\n"})
    said = time.mktime((2026, 11, 22, 10, 9, 48, 0, 0, -1))
    assert control.query_known_nodes(runner, ["n1"])["n1"].booted == (0.0 if booted is None else said + booted)


def test_free_text_of_a_node_is_no_field_and_no_other_node() -> None:
    """As 24.11.5 prints a node whose Reason, Comment and Extra have line feeds."""
    forged = (
        "NodeName=n1 NodeAddr=10.0.0.1 Port=6818 OS=Linux 6.1 #1 SMP State=IDLE+DRAIN BootTime=None "
        "Reason=x [root@2026-11-22T05:00:38]        NodeName=n2 State=DOWN Comment=State=DOWN c\n"
        "NodeName=n2 State=DOWN Extra=e\n"
    )
    runner = RecordingRunner(
        {
            "scontrol -o show node n[1-2]": forged + "NodeName=n2 NodeAddr=10.0.0.2 State=IDLE\n",
            "scontrol -o show node n2": "NodeName=n2 NodeAddr=10.0.0.2 State=IDLE\n",
        }
    )
    found = control.query_known_nodes(runner, ["n1", "n2"])
    assert [(node.name, node.address, node.state) for node in found.values()] == [
        ("n1", "10.0.0.1", "IDLE+DRAIN"),
        ("n2", "10.0.0.2", "IDLE"),
    ]


def test_only_steps_of_ours_are_killed() -> None:
    runner = RecordingRunner({"squeue --steps": "7.0 hpk-7.0.0\n7.1 monitor\n7.batch batch\n", "scancel": ""})
    assert control.kill_steps(runner, JobId("7"), "hpk-") == ["7.0"]
    assert runner.calls[-1] == "scancel --signal=KILL 7.0"


def test_nothing_is_killed_when_nothing_is_left() -> None:
    runner = RecordingRunner({"squeue --steps": ""})
    assert control.kill_steps(runner, JobId("7"), "hpk-") == []
    assert len(runner.calls) == 1


def test_options_of_a_program() -> None:
    runner = RecordingRunner({"srun --help": "      --auto-resume=0|1|N     resume\n      --overlap\n"})
    assert control.has_option(runner, "srun", "--auto-resume") is True
    assert control.has_option(runner, "srun", "--auto") is False
    assert control.option_help_none_if_not_runnable(runner, "srun", "--overlap") == "--overlap"


OURS = """\
Options provided by plugins:
      --auto-resume[=0|1|N]   resume from the newest valid checkpoint after a
                              failure (hyperpod-kit)
      --container-image=IMAGE the image
"""
THEIRS = OURS.replace("(hyperpod-kit)", "of a node")


@pytest.mark.parametrize(("text", "theirs"), [(OURS, False), (THEIRS, True), ("      --overlap\n", False)])
def test_the_option_of_our_own_plugin_is_not_hyperpods(text: str, theirs: bool) -> None:
    """With ours alone, or before HyperPod's in plugstack.conf, srun has our option: nobody replaces a node then."""
    assert hyperpod.has_hyperpod_step_retry(RecordingRunner({"srun --help": text})) is theirs


@pytest.mark.parametrize(
    ("what", "booted", "served_since", "anew"),
    [
        ("the same", 1e9, 1e9 + 20, False),
        ("the same, rounded otherwise", 1e9 + 1, 1e9 + 20, False),
        ("its slurmd was started again", 1e9, 1e9 + 5000, False),
        ("its clock was set an hour on", 1e9 + 3600, 1e9 + 20, False),
        ("its clock was set an hour back", 1e9 - 3600, 1e9 + 20, False),
        ("it was booted", 1e9 + 4000, 1e9 + 4020, True),
        ("it was booted, and its clock set back", 1e9 - 4000, 1e9 - 3980, True),
        ("nobody says", 0.0, 0.0, False),
        ("slurmctld has not heard of it yet", 1e9 + 4000, 0.0, False),
    ],
)
def test_another_start_of_a_machine_is_told_by_its_own_words(
    what: str, booted: float, served_since: float, anew: bool
) -> None:
    before, now = control.NodeStart(1e9, 1e9 + 20), control.NodeStart(booted, served_since)
    assert now.was_rebooted_since(before) is anew, what
    assert not now.was_rebooted_since(control.NodeStart(0.0, 0.0)), "nothing was known before"
