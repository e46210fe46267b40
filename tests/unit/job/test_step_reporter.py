"""From what ranks write in their wrappers' memory to what `job run` knows of them, over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from hyperpod_kit.environment import HPK_ATTEMPT_KEY, HPK_LIFELINE, HPK_PROGRESS, HPK_STEP_REPORTS
from hyperpod_kit.job.step import lifeline, step_report
from hyperpod_kit.job.step.lifeline import BYE, SERVES, Lifeline, Lifelines
from hyperpod_kit.job.step.step_report import StepReport
from hyperpod_kit.job.wrapper import step_reporter
from hyperpod_kit.job.wrapper.step_reporter import StepReporter
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.slurm.progress import ProgressWriter, RankProgress
from tests.support.wait import until


class Rank:
    """A wrapper in this process, and what its command would write."""

    def __init__(self, env: Dict[str, str], rank: int, node: str, local: int = 0) -> None:
        env = {**env, "SLURM_LOCALID": str(local)}
        self.memory = RankProgress()
        self.line = Lifeline(env, node)
        self.reporter = StepReporter(self.memory, self.line, env, rank=rank, node=node)
        self.teller = ProgressWriter({HPK_PROGRESS: self.memory.path})

    def end(self) -> None:
        self.reporter.stop()
        self.line.end(BYE)


@pytest.fixture
def lines() -> Iterator[Lifelines]:
    made = Lifelines("127.0.0.1")
    yield made
    made.close()


def heard(lines: Lifelines, condition: Callable[[Dict[int, StepReport]], bool]) -> Dict[int, StepReport]:
    def look() -> bool:
        lines.receive_and_list_cut_off_nodes()
        return condition(lines.reports)

    until(look, what="reports")
    return lines.reports


def test_all_ranks_of_all_nodes_are_known(lines: Lifelines) -> None:
    """Only one wrapper of a node has a line; it speaks for the others, in whatever order they begin."""
    env = dict(lines.environment)
    ranks = [Rank(env, 1, "n1", local=1), Rank(env, 0, "n1"), Rank(env, 2, "n2"), Rank(env, 3, "n2", local=1)]
    for number, rank in zip((1, 0, 2, 3), ranks):
        rank.teller.report_first_step(5)
        rank.teller.report_completed_step(10 + number)
    known = heard(lines, lambda known: len(known) == 4 and all(one.step for one in known.values()))
    assert {rank: (one.step, one.node) for rank, one in known.items()} == {
        0: (10, "n1"),
        1: (11, "n1"),
        2: (12, "n2"),
        3: (13, "n2"),
    }
    assert {one.phase for one in known.values()} == {Phase.STEP}
    with ranks[3].teller.report_phase_during(Phase.SAVE):
        heard(lines, lambda known: known[3].phase is Phase.SAVE)
    ranks[0].end()
    heard(lines, lambda known: known[1].phase is Phase.OVER and known[0].phase is Phase.STEP)
    for rank in ranks[1:]:
        rank.end()
    heard(lines, lambda known: {one.phase for one in known.values()} == {Phase.OVER})
    assert lines.status_by_node == {"n1": BYE, "n2": BYE} and lines.receive_and_list_cut_off_nodes() == []


def test_who_says_nothing_is_not_known(lines: Lifelines) -> None:
    silent, loud = Rank(dict(lines.environment), 0, "n1"), Rank(dict(lines.environment), 1, "n1", local=1)
    loud.teller.report_completed_step(3)
    assert set(heard(lines, bool)) == {1}
    silent.end()
    loud.end()


def test_ranks_that_are_started_again_are_others(lines: Lifelines) -> None:
    first = Rank(dict(lines.environment), 0, "n1")
    first.teller.report_completed_step(3)
    heard(lines, bool)
    lines.note_announced_relaunch()
    assert lines.reports == {}
    first.teller.report_completed_step(4)
    second = Rank({**lines.environment, "SLURM_STEP_LAUNCHER_PORT": "4001"}, 0, "n1")
    second.teller.report_completed_step(1)
    heard(lines, lambda known: 0 in known and known[0].step == 1)
    first.end()
    second.end()


def test_a_job_run_of_an_earlier_release_hears_no_word_that_it_does_not_know() -> None:
    """It would take one for an end in order, and not miss a slurmstepd that dies after it."""
    key = "ab" * 16
    with socket.create_server(("127.0.0.1", 0)) as server:
        older = {HPK_LIFELINE: f"127.0.0.1:{server.getsockname()[1]}:0123abcd", HPK_ATTEMPT_KEY: key}
        for env in (older, {**older, HPK_STEP_REPORTS: "of-a-job-around-it"}):
            assert not step_reporter.does_job_run_accept_reports(env)
            rank = Rank(env, 0, "n1")
            rank.teller.report_completed_step(3)
            with server.accept()[0] as sock:
                rank.end()
                with sock.makefile("rb") as file:
                    greeting, *words = file.read().splitlines()
            assert json.loads(greeting)["node"] == "n1" and [word.split(b" ")[1] for word in words] == [BYE.encode()]


def test_a_wrapper_of_an_earlier_release_is_heard_as_before(lines: Lifelines) -> None:
    older = Lifeline(lines.environment, "n1")
    older.say(SERVES)
    until(lambda: (lines.receive_and_list_cut_off_nodes(), lines.status_by_node.get("n1") == SERVES)[1], what="word")
    older.end(BYE)
    until(lambda: (lines.receive_and_list_cut_off_nodes(), lines.status_by_node.get("n1") == BYE)[1], what="last word")
    assert lines.reports == {}


def test_a_report_is_no_last_word(lines: Lifelines) -> None:
    """A node that has reported and breaks off is missed."""
    rank = Rank(dict(lines.environment), 0, "n1")
    rank.teller.report_completed_step(3)
    heard(lines, bool)
    rank.line._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    until(lambda: (lines.receive_and_list_cut_off_nodes(), "n1" in lines.status_by_node)[1], what="end")
    assert lines.status_by_node == {"n1": ""} and lines.seconds_until_due is not None
    rank.end()


def test_reports_that_job_run_does_not_read_leave_room_for_a_word(lines: Lifelines) -> None:
    """It hangs with its log, for hours perhaps; afterwards it hears a node's word and nothing that is torn."""
    line = Lifeline(lines.environment, "n1")
    one = StepReport(0, "n1", 1, Phase.STEP, 0, 1.0)
    sent = 0
    while line.report([one._replace(step=sent)] * 500):
        sent += 1
        assert sent < 10000, "it never ends"
    line.say(lifeline.STORAGE)
    until(lambda: (lines.receive_and_list_cut_off_nodes(), lines.without_storage == ["n1"])[1], what="word")
    step = lines.reports[0].step
    assert step is not None and step >= sent - 2
    line.end(BYE)


def test_nodes_that_report_do_not_keep_job_run_from_waiting(lines: Lifelines) -> None:
    rank = Rank(dict(lines.environment), 0, "n1")
    rank.teller.report_completed_step(3)
    heard(lines, bool)
    assert lines.seconds_until_due is not None and lines.seconds_until_due <= lifeline._EACH
    rank.end()


def test_many_nodes_speak_less_often() -> None:
    assert step_reporter.interval(1) == step_reporter.interval(200) == 1.0
    assert step_reporter.interval(2000) == 10.0


def test_another_processs_datagrams_are_not_believed(lines: Lifelines) -> None:
    leader = Rank(dict(lines.environment), 0, "n1")
    assert leader.reporter.neighbours is not None
    leader.teller.report_completed_step(1)
    heard(lines, bool)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        for data in (b"", b"x", b"\xff" * 80, b"0" * 64 + b'[[7,1,"step",0,0]]'):
            sock.sendto(data, leader.reporter.neighbours.address)
    leader.teller.report_completed_step(2)
    assert set(heard(lines, lambda known: known[0].step == 2)) == {0}
    leader.end()


ROW: List[Any] = [3, 7, "step", 0, 1.5]


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, -1), (0, True), (0, "3"), (1, -1), (1, 1.5), (1, 1 << 70), (3, None), (4, "1"), (4, -0.1), (4, 1e300)],
)
def test_what_no_wrapper_says_is_not_taken(place: int, value: Any) -> None:
    row = list(ROW)
    row[place] = value
    with pytest.raises(ValueError):
        step_report.decoded(json.dumps([row]), "n1")


@pytest.mark.parametrize("text", ["", "{}", "[7]", "[[]]", "[[1,2]]", "[" * 100000, '[[3,7,"step",0,NaN]]'])
def test_what_is_no_report_is_not_taken(text: str) -> None:
    with pytest.raises(ValueError):
        step_report.decoded(text, "n1")


def test_a_later_release_may_say_more() -> None:
    [found] = step_report.decoded(json.dumps([[3, None, "rollout", 2, 1, "more"]]), "n1")
    assert found == StepReport(3, "n1", None, Phase.EVALUATION, 2, 1.0)
    assert step_report.decoded(step_report.encoded([found]), "n1") == [found]


# --- what a rank writes ---------------------------------------------------------------------------------------------


def test_a_rank_says_in_which_phase_it_is() -> None:
    memory = RankProgress()
    teller = ProgressWriter({HPK_PROGRESS: memory.path})
    assert memory.state() == (None, None, Phase.START, 0)
    with teller.report_phase_during(Phase.RESTORE):
        teller.report_phase_advance()
        assert memory.state() == (None, None, Phase.RESTORE, 1)
    assert memory.state().phase is Phase.START
    teller.report_first_step(40)
    assert memory.state() == (None, 40, Phase.STEP, 1)
    teller.report_completed_step(40)
    with teller.report_phase_during(Phase.EVALUATION):
        assert memory.state().phase is Phase.EVALUATION
        teller.report_completed_step(41)
    assert memory.state() == (41, 40, Phase.STEP, 1)
    with contextlib.suppress(RuntimeError), teller.report_phase_during(Phase.SAVE):
        raise RuntimeError
    assert memory.state().phase is Phase.STEP
    teller.report_phase(Phase.OVER)
    assert memory.state().phase is Phase.OVER


@pytest.mark.parametrize(
    ("phases", "shown"),
    [
        ((Phase.STEP, Phase.SAVE, Phase.STEP), Phase.SAVE),
        ((Phase.OVER, Phase.STEP, Phase.OVER), Phase.STEP),
        ((Phase.SAVE, Phase.EVALUATION, Phase.STEP), Phase.EVALUATION),
    ],
)
def test_of_several_processes_below_one_wrapper_the_one_that_others_wait_for_counts(
    phases: tuple[Phase, ...], shown: Phase
) -> None:
    """torchrun starts them; each has a place of its own by LOCAL_RANK."""
    memory = RankProgress()
    for local, phase in enumerate(phases):
        ProgressWriter({HPK_PROGRESS: memory.path, "LOCAL_RANK": str(local)}).report_phase(phase)
    assert memory.state().phase is shown


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("42", (42, None, Phase.STEP, 0)),
        ("42 evaluation", (42, None, Phase.EVALUATION, 0)),
        ("42 over", (42, None, Phase.OVER, 0)),
        ("42 lunch", (42, None, Phase.STEP, 0)),
        ("words", (None, None, Phase.START, 0)),
    ],
)
def test_a_shell_says_the_same(text: str, state: tuple[Optional[int], Optional[int], Phase, int]) -> None:
    memory = RankProgress()
    command = ["/bin/sh", "-c", f"echo {text} > $HPK_PROGRESS"]
    subprocess.run(command, env={"HPK_PROGRESS": memory.path}, check=True, timeout=60)
    assert memory.state() == state


def test_a_command_under_a_wrapper_is_heard_of(lines: Lifelines) -> None:
    """The wrapper as Slurm starts it, with a command that writes steps and then waits."""
    main = Path(lifeline.__file__).parents[1] / "__main__.py"
    command = 'for n in 1 2 3; do echo $n > "$HPK_PROGRESS"; done; read wait'
    wrapper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(main), "exec", "--", "/bin/sh", "-c", command],
        env={**os.environ, **lines.environment, "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "0", "SLURM_PROCID": "5"},
        stdin=subprocess.PIPE,
    )
    assert heard(lines, bool)[5].step == 3
    wrapper.communicate(b"\n", timeout=60)
    assert wrapper.returncode == 0
    assert heard(lines, lambda known: known[5].phase is Phase.OVER)[5].step == 3
