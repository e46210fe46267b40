"""The connection between a node of a step and `job run`."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Dict, List

import pytest

from hyperpod_kit.environment import HPK_LIFELINE
from hyperpod_kit.job.step import lifeline
from hyperpod_kit.job.step.lifeline import BYE, LOST, SERVES, STORAGE, UNNOTICED, Lifeline, Lifelines
from tests.support.wait import until


class Ends:
    """Both ends, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.here = Lifelines("127.0.0.1", clock=lambda: self.now)
        self.environment: Dict[str, str] = self.here.environment

    def after_traffic(self) -> List[str]:
        self.now += 0.25  # strangers are looked at now and then
        select.select(self.here.files, [], [], 5)
        return self.here.receive_and_list_cut_off_nodes()


def test_a_node_that_ends_in_order_is_not_missed() -> None:
    ends = Ends()
    line = Lifeline(ends.environment, "n1")
    assert ends.after_traffic() == []
    line.end(BYE)
    ends.after_traffic()
    ends.now += 60
    assert ends.here.receive_and_list_cut_off_nodes() == [] and ends.here.status_by_node == {"n1": BYE}


def test_a_connection_that_breaks_gives_slurm_time_to_notice() -> None:
    ends = Ends()
    line = Lifeline(ends.environment, "n2")
    assert ends.after_traffic() == []
    ends.now += 1
    assert ends.here.seconds_until_due is None
    line._socket.close()  # type: ignore[union-attr]  # as the kernel does for a process that was killed
    assert ends.after_traffic() == [] and ends.here.seconds_until_due == UNNOTICED
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n2"]


def test_who_is_gone_is_forgotten_when_hyperpod_has_started_the_ranks_again() -> None:
    ends = Ends()
    old = Lifeline(ends.environment, "n2")
    assert ends.after_traffic() == []
    old._socket.close()  # type: ignore[union-attr]
    ends.after_traffic()
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n2"]
    ends.here.note_announced_relaunch()
    assert ends.here.receive_and_list_cut_off_nodes() == [] and ends.here.launch == 2
    new = Lifeline(ends.environment, "n3")
    assert ends.after_traffic() == [] and ends.here.launch == 2
    new._socket.close()  # type: ignore[union-attr]
    ends.after_traffic()
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n3"], "of the new ranks a loss is noticed"


def test_ranks_that_are_faster_than_hyperpods_words_are_not_taken_for_those_before() -> None:
    ends = Ends()
    Lifeline(ends.environment, "n2").end(BYE)
    ends.after_traffic()
    new = Lifeline(ends.environment, "n2")
    ends.after_traffic()
    assert ends.here.launch == 2
    ends.here.note_announced_relaunch()
    assert ends.here.launch == 2
    new._socket.close()  # type: ignore[union-attr]
    ends.after_traffic()
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n2"]


def test_launches_that_hyperpod_speaks_of_late_are_counted() -> None:
    """Two were over within one look at the log: the third has a lifeline all the same."""
    ends = Ends()
    for _ in range(2):
        Lifeline(ends.environment, "n2").end(BYE)
        ends.after_traffic()
    new = Lifeline(ends.environment, "n2")
    ends.after_traffic()
    assert ends.here.launch == 3
    ends.here.note_announced_relaunch()
    ends.here.note_announced_relaunch()
    assert ends.here.launch == 3
    new._socket.close()  # type: ignore[union-attr]
    ends.after_traffic()
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n2"]
    ends.here.note_announced_relaunch()
    assert ends.here.launch == 4 and ends.here.receive_and_list_cut_off_nodes() == []


def test_a_rank_without_slurmstepd_and_a_node_without_storage_say_so() -> None:
    ends = Ends()
    Lifeline(ends.environment, "n1").end(LOST)
    Lifeline(ends.environment, "n2").end(STORAGE)
    while len(ends.here.status_by_node) < 2:
        ends.after_traffic()
    assert ends.here.receive_and_list_cut_off_nodes() == ["n1"] and ends.here.without_storage == ["n2"]


def test_strangers_are_not_heard_and_only_one_rank_a_node_speaks() -> None:
    ends = Ends()
    host, port, _name = ends.environment[HPK_LIFELINE].split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"guess n1\n")
        ends.after_traffic()
        assert stranger.recv(1) == b""
    Lifeline({**ends.environment, "SLURM_LOCALID": "1"}, "n2").end(LOST)
    Lifeline({}, "n3").end(LOST)
    ends.now += 60
    assert ends.here.receive_and_list_cut_off_nodes() == [] and ends.here.status_by_node == {}


def test_no_address_no_listener() -> None:
    lines = Lifelines("")
    assert lines.environment[HPK_LIFELINE] == "" and lines.files == [] and lines.receive_and_list_cut_off_nodes() == []


def _hears(ends: Ends, word: str) -> bool:
    ends.here.receive_and_list_cut_off_nodes()
    return ends.here.status_by_node.get("n1") == word


def test_a_node_may_complain_in_mid_step_take_it_back_and_still_break_off() -> None:
    ends = Ends()
    line = Lifeline(ends.environment, "n1")
    for word, complaining in ((STORAGE, ["n1"]), (SERVES, []), (STORAGE, ["n1"]), (SERVES, [])):
        line.say(word)
        until(partial(_hears, ends, word), what=word)
        assert ends.here.without_storage == complaining and ends.here.receive_and_list_cut_off_nodes() == []
    line._socket.close()  # type: ignore[union-attr]
    assert ends.after_traffic() == []
    ends.now += UNNOTICED
    assert ends.here.receive_and_list_cut_off_nodes() == ["n1"] and ends.here.without_storage == []


def lost_with(slurmstepd: subprocess.Popen[bytes], ends: Ends) -> None:
    """Once n1 is connected its slurmstepd is killed; n1 says that it is lost."""
    until(lambda: (ends.here.receive_and_list_cut_off_nodes(), len(ends.here._lines) > 0)[1], what="line")
    slurmstepd.kill()
    slurmstepd.wait(10)
    until(lambda: ends.here.receive_and_list_cut_off_nodes() == ["n1"], what="last word")
    assert ends.here.status_by_node == {"n1": LOST}


def test_a_slurmstepd_that_dies_before_the_command_runs_is_missed_too() -> None:
    ends = Ends()
    script = """
import os, sys, time
from hyperpod_kit.job.wrapper import rank

class Late(rank.Lifeline):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        while os.getppid() == slurmstepd:
            time.sleep(0.01)

slurmstepd, rank.Lifeline = os.getppid(), Late
sys.exit(rank.run_rank(["sleep", "60"], os.environ))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {script!r}])"],
        env={**os.environ, **ends.environment, "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0"},
        cwd=Path(lifeline.__file__).parents[2],
    )
    lost_with(parent, ends)


def test_a_rank_that_ends_of_the_pipe_of_its_dead_slurmstepd_says_that_it_is_lost() -> None:
    """The command fails before the wrapper has looked for its parent: no end in order, Slurm would wait for ever."""
    ends = Ends()
    main = Path(lifeline.__file__).parents[1] / "__main__.py"
    command = [
        sys.executable,
        "-I",
        "-S",
        str(main),
        "exec",
        "--",
        "/bin/sh",
        "-c",
        "while echo step; do sleep 0.01; done",
    ]
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess; p = subprocess.Popen({command!r}, stdout=subprocess.PIPE)\n"
            "while p.stdout.readline(): pass",
        ],
        env={**os.environ, **ends.environment, "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lost_with(parent, ends)


def test_a_node_of_an_older_release_has_no_line_and_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    ends = Ends()
    host, port, name = ends.environment[HPK_LIFELINE].split(":")
    with socket.create_connection((host, int(port))) as older:
        older.sendall(f"{name} n7\n".encode())
        ends.after_traffic()
    [sentence] = ends.here.news()
    assert (
        sentence.startswith("n7 runs an older release")
        and ends.here.news() == []
        and ends.here.receive_and_list_cut_off_nodes() == []
    )
    Lifeline({HPK_LIFELINE: f"127.0.0.1:{port}:0123456789abcdef"}, "n8").end(BYE)
    assert "`job run` is of an older release than n8" in capfd.readouterr().err


def test_who_cannot_listen_at_the_announced_address_says_where_he_does() -> None:
    lines = Lifelines("192.0.2.5", ["192.0.2.6"])
    assert "all interfaces" in lines.news()[0] and lines.environment[HPK_LIFELINE].startswith("192.0.2.5:")
    lines.close()
    assert Lifelines("127.0.0.1").news() == []
