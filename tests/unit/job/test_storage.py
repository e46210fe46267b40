"""A checkpoint root that does not answer: noticed without being drawn in, outlasted, charged to nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from hyperpod_kit.job.base.exits import Exit
from hyperpod_kit.job.base.report import JobReport
from hyperpod_kit.job.base.signals import Signals
from hyperpod_kit.job.decide.budget import count_spent_budget
from hyperpod_kit.job.decide.outcome import Observation, classify
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.step.storage import CheckpointRoot, Probe
from tests.support.wait import scaled, until


def test_a_directory_that_can_be_written_answers_and_keeps_nothing(tmp_path: Path) -> None:
    assert Probe(str(tmp_path)).answers() and list(tmp_path.iterdir()) == []
    assert not Probe(str(tmp_path / "absent")).answers()


@pytest.mark.parametrize("victim", ["$PPID", "$$"])
def test_a_question_that_slurm_ends_with_the_step_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Every process of a step gets Slurm's signals; a root that serves must not be called lost for it."""
    once, state = tmp_path / "once", tmp_path / "state"
    state.mkdir()
    program = tmp_path / "mktemp"
    program.write_text(
        f'#!/bin/sh\n[ -e {once} ] && exec {shutil.which("mktemp")} "$@"\n: >{once}\nkill -TERM {victim}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Probe(str(state)).answers() and once.exists() and list(state.iterdir()) == []


def test_a_question_that_is_always_ended_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mktemp"
    program.write_text("#!/bin/sh\nkill -TERM $PPID\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Probe(str(tmp_path), deadline=scaled(1), longest=scaled(1.3)).answers()


def test_a_probe_that_is_ended_by_a_signal_late_on_a_busy_node_is_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a processor until Slurm signals the step: the next one decides."""
    once, state = tmp_path / "once", tmp_path / "state"
    state.mkdir()
    deadline = scaled(1.0)
    busy = f"({sys.executable} -c 'import time; end = time.time() + {2 * deadline}\nwhile time.time() < end: pass')"
    program = tmp_path / "mktemp"
    program.write_text(
        f'#!/bin/sh\n[ -e {once} ] && exec {shutil.which("mktemp")} "$@"\n: >{once}\n{busy}\nkill -TERM $PPID\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Probe(str(state), deadline=deadline, longest=10 * deadline).answers() and once.exists()


@pytest.mark.parametrize(("work", "answers"), [("while :; do :; done", True), ("sleep 600", False)])
def test_a_probe_that_waits_for_a_processor_is_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, answers: bool
) -> None:
    """A busy node has not run the probe yet, and whether the file system serves is seen when it has."""
    state, begun = tmp_path / "state", tmp_path / "begun"
    state.mkdir()
    program = tmp_path / "mktemp"
    program.write_text(f'#!/bin/sh\n( {work} ) & echo $! >{begun}; wait $!\nexec {shutil.which("mktemp")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    # A busy disk may hold up the start of a program for a second.
    deadline = scaled(2.0)
    probe = Probe(str(state), deadline=deadline, longest=10 * deadline)
    answered = threading.Event()

    def end_work_long_after_the_deadline() -> None:
        until(lambda: begun.exists() and begun.read_text().strip(), what="the work")
        answered.wait(2 * deadline)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(begun.read_text()), signal.SIGKILL)

    end = threading.Thread(target=end_work_long_after_the_deadline)
    end.start()
    assert probe.answers() == answers and probe.has_timed_out != answers
    answered.set()
    end.join()


def test_a_root_that_hangs_is_not_called_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    program = tmp_path / "mktemp"
    program.write_text(f"#!/bin/sh\necho $$ >>{asked}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    defaults = Probe.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "deadline", scaled(0.5))
    with Signals() as signals, open(tmp_path / "log", "w") as log:
        root = CheckpointRoot(str(tmp_path), 0.1, signals, JobReport(log.fileno()), claim_path=str(tmp_path / "claim"))
        assert root.outlast() and not root.is_replaced()
        pids = [int(line) for line in asked.read_text().split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert "does not answer; waiting" in (tmp_path / "log").read_text()


def test_an_outage_is_outlasted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Signals() as signals, open(tmp_path / "log", "w") as log:
        checkpoint_root = CheckpointRoot(str(state), 30.0, signals, JobReport(log.fileno()))

        def come_back() -> None:
            until(lambda: "does not answer" in (tmp_path / "log").read_text(), what="a word of the outage")
            state.mkdir()

        back = threading.Thread(target=come_back)
        back.start()
        assert checkpoint_root.outlast() and state.is_dir()
        back.join()
        assert not checkpoint_root.outlast()


def test_it_costs_no_budget() -> None:
    first = Exit(1, "n2", "", 1, None, 0.0, 1.0)
    outcome = classify(Observation(1, (first,), nodes_without_root=("", "n2")))
    assert outcome.kind is OutcomeKind.STORAGE and outcome.sentence() == "lost the checkpoint root on n2"
    rows = [{"event": "attempt", "from": "none"}, {"event": "ended", **outcome.fields()}] * 30
    assert count_spent_budget(rows, None, 0) == count_spent_budget([], None, 0)


def test_an_image_without_mktemp_does_not_lose_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Probe(str(tmp_path)).answers() and list(tmp_path.iterdir()) == []
    assert not Probe(str(tmp_path / "none")).answers()
