"""Where a program starts is reported in one line: by default on standard error, else where its logs go."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.run.start_report import report_start

RESTORED = Restored(41, 2, 7, "seq-000007", "memory+storage", 0.25, 25_000_000, (("seq-000008", "rank 1 lost it"),))
LOGGER = logging.getLogger("hyperpod_kit.checkpoint")
RESUMES = "training resumes at step 42 from seq-000007 in memory+storage: 25.0 MB restored and verified in 0.2 s"


@pytest.fixture
def no_logging() -> Iterator[None]:
    """As in a program that has not set up logging: pytest's own handlers are taken away."""
    root = logging.getLogger()
    handlers, level, own_level = root.handlers[:], root.level, LOGGER.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(logging.NOTSET)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    LOGGER.setLevel(own_level)


@pytest.mark.usefixtures("no_logging")
def test_a_resume_is_reported_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    report_start("/fsx/run", RESTORED)
    assert capsys.readouterr().err == f"hyperpod-kit: {RESUMES}; not restored: seq-000008 (rank 1 lost it)\n"


@pytest.mark.usefixtures("no_logging")
def test_a_start_without_a_checkpoint_is_reported_too(capsys: pytest.CaptureFixture[str]) -> None:
    report_start("/fsx/run", Fresh(0.1))
    assert capsys.readouterr().err == (
        "hyperpod-kit: training starts at step 0: no checkpoint to restore below /fsx/run\n"
    )


@pytest.mark.usefixtures("no_logging")
def test_a_framework_that_logs_warnings_alone_does_not_make_it_silent(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    report_start("/fsx/run", RESTORED)
    assert RESUMES in capsys.readouterr().err


@pytest.mark.usefixtures("no_logging")
def test_a_program_that_logs_gets_it_in_its_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    report_start("/fsx/run", RESTORED)
    assert [record.getMessage().startswith(RESUMES) for record in records] == [True]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_logging")
def test_a_level_of_the_logger_switches_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.setLevel(logging.WARNING)
    report_start("/fsx/run", RESTORED)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_logging")
def test_what_another_wrote_does_not_reach_the_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = Restored(1, 1, 1, "seq-1", "storage", 0.1, 1, (("seq-2", "\x1b]0;owned\x07"),))
    report_start("/fsx/run", hostile)
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.usefixtures("no_logging")
def test_a_closed_standard_error_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  # closing it fails, as each of its writes
    monkeypatch.setattr(sys, "stderr", full)
    report_start("/fsx/run", RESTORED)
    with contextlib.suppress(OSError):
        full.close()
    report_start("/fsx/run", RESTORED)
