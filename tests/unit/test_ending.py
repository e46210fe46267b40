"""How the programs of nodes and jobs end where the system has an error for which no command has words of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit import ending
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job import cli

MAIN = Path(cli.__file__).with_name("__main__.py")
SPEAKS = """
import sys
from hyperpod_kit import ending
def work():
    print("x" * 100000, flush=True)
    return 0
sys.exit(ending.run(work))
"""


def test_what_is_not_there_is_a_sentence_and_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending.run(lambda: len(os.listdir("/nowhere/dev/shm"))) == ExitCode.ABSENT
    assert capsys.readouterr().err == "error: /nowhere/dev/shm: No such file or directory\n"


def test_what_job_run_alone_calls_says_so() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(MAIN), "look"], capture_output=True, text=True)
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith("error: no directory given")


def test_a_reader_that_has_gone_hears_nothing_of_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", SPEAKS], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.READER_GONE, "")
