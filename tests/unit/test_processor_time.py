"""The measure that decides which tests are `full`: a test's processor time, with that of what it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.processor_time import LIMIT, read, report, seconds_below

TICK = 1 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts processor time in: two sums of it may be rounded differently."""
BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_a_child_counts_while_it_lives_and_after_it_was_waited_for() -> None:
    before = seconds_below(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BURN + "print(flush=True); input()"], stdin=-1, stdout=-1) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        alive = seconds_below(os.getpid()) - before
        child.stdin.write(b"\n")
    assert alive >= 0.25
    afterwards = seconds_below(os.getpid()) - before
    assert afterwards > alive - 2 * TICK, (afterwards, alive)


def test_a_process_that_nobody_waits_for_counts_in_a_control_group() -> None:
    """In a process of its own, for a group counts from its beginning."""
    text = (
        "import os, subprocess, sys\n"
        "from tests.support.processor_time import Tree, counter\n"
        "found = counter()\n"
        f"burn = [sys.executable, '-c', {BURN!r}]\n"
        "before = found.seconds()\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    subprocess.Popen(burn, pass_fds=[writing], start_new_session=True)\n"
        "    os._exit(0)\n"
        "os.close(writing)\n"
        "os.read(reading, 1)\n"
        "print(isinstance(found, Tree), found.seconds() - before)\n"
        "found.close()\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", text], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tree, seconds = done.stdout.split()
    assert tree == "True" or float(seconds) >= 0.25


def test_each_test_gets_a_line(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import pytest\n@pytest.mark.full\ndef test_a(): ...\ndef test_b(): ...\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.support import processor_time\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'full: long')\n"
        "    config.pluginmanager.register(processor_time.ProcessorTime('out/times.jsonl'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    subprocess.run(pytest, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    rows = read(tmp_path / "out/times.jsonl")
    assert [(row.test, row.full) for row in rows] == [("test_some.py::test_a", True), ("test_some.py::test_b", False)]


def test_the_last_line_of_a_test_counts_and_what_should_be_full_is_named(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    measured = [("tests/a/test_x.py::test_1", 9.0, False), ("tests/a/test_x.py::test_1", LIMIT + 1, False)]
    measured += [("tests/b/test_y.py::test_2", LIMIT + 2, True), ("tests/b/test_y.py::test_3", 0.5, False)]
    lines = [json.dumps({"test": test, "processor": time, "wall": time, "full": full}) for test, time, full in measured]
    path.write_text("\n".join(lines) + "\n")
    text = list(report(read(path), depth=2))
    assert [line.split() for line in text[1:4]] == [
        ["tests/a", "1", "4.0", "1", "4.0"],
        ["tests/b", "2", "5.5", "1", "0.5"],
        ["together", "3", "9.5", "2", "4.5"],
    ]
    assert text[4].strip().startswith("1 tests above") and text[5].split() == ["4.0", "tests/a/test_x.py::test_1"]
