"""Ranks under SIGKILL, in other numbers at each start: each sample exactly once an epoch, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rows import full
from tests.support.wait import until
from tests.unit.data.killed_ranks import corpus, torture


@pytest.mark.parametrize("last", ["pad", *full("repeat")])
def test_each_sample_once_under_kills(tmp_path, last):
    samples = 600
    found = torture(corpus(tmp_path / "corpus", samples), tmp_path, kills=6, epochs=2, seed=3, last=last)
    assert found.report.problems == () and found.report.is_exactly_once
    assert found.kills >= 4 and found.report.rolled_back > 0
    assert [(one.once, one.complete) for one in found.report.epochs[:2]] == [(samples, True)] * 2


@pytest.mark.full
def test_the_samples_come_in_the_order_of_an_undisturbed_run(tmp_path):
    made = corpus(tmp_path / "corpus", 420)
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm = torture(made, tmp_path / "calm", kills=0, epochs=2, seed=1)
    killed = torture(made, tmp_path / "killed", kills=4, epochs=2, seed=2)
    assert calm.consumed == killed.consumed and killed.kills > 2


PROGRAM = """
import sys, time
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
loader = ElasticLoader(IndexedDataset(SampleIndex.open(sys.argv[1])), 4, num_workers=2, collate_fn=list)
for batch in loader:
    print("batch", flush=True)
    time.sleep(60)
"""


def test_nothing_is_left_after_a_kill(tmp_path):
    made = corpus(tmp_path / "corpus", 200)
    mine = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "MARK_OF_THIS_TEST": str(tmp_path)}
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, made.index.folder], stdout=subprocess.PIPE, env=mine
    )
    assert process.stdout is not None and process.stdout.readline() == b"batch\n"
    family = _marked(tmp_path)
    assert len(family) == 3
    segments = {path for pid in family for path in _in_shared_memory(pid)}
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not _marked(tmp_path), what="end of the workers")
    assert [path for path in segments if os.path.exists(path)] == []
    assert [name for name in os.listdir(tmp_path / "tmp") if not name.startswith("pymp-")] == []


def _in_shared_memory(pid):
    """Files of /dev/shm that a process has open or mapped: others come and go there, of other programs."""
    files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if os.path.islink(entry)]
    mapped = [line.split(None, 5)[-1].strip() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {path for path in (*files, *mapped) if path.startswith("/dev/shm/")}


def _marked(mark):
    """Processes with our mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                if f"MARK_OF_THIS_TEST={mark}\0".encode() in stream.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found
