"""A job reads its data through a Mountpoint whose process is killed, and stopped, in mid-epoch: the job goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Iterator

import corpus
import pytest
from driver import LIVE, TRAIN, DemoError, Driver, events, wait_until

pytestmark = pytest.mark.full  # minutes of machines; one process of the same is in tests/unit/data

CONTROLLER, WORKER = "storage-controller/0", "storage-worker/0"
HERE = "/fsx/trainer/streamed"
PYTHON = f"{TRAIN}/bin/python3"
TRAINER = Path(__file__).with_name("data_trainer.py")
SCRIPT = f"""\
#!/bin/bash
#SBATCH -N1 --ntasks=2 --overcommit --open-mode=append --chdir={HERE} --output={HERE}/out --auto-resume=1
exec hyperpod-kit job run --json-lines --checkpoint-root {HERE}/root --srun-args=--overcommit -- \\
    {PYTHON} {HERE}/trainer.py {HERE}/index {HERE}/ledger {HERE}/epochs 0.1
"""


class StreamedJob:
    """The job, watched through its output."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def start(self) -> None:
        files = {"trainer.py": TRAINER.read_text(), "job.sbatch": SCRIPT}
        placed = "; ".join(f"printf %s {shlex.quote(text)} >{HERE}/{name}" for name, text in files.items())
        self._driver.on(WORKER, f"install -d -o trainer -g trainer /fsx/trainer {HERE}; {placed}")
        self.on_data("index", "/mnt/data", "--format", "whole", "--out", f"{HERE}/index")
        self.id = self._driver.on(CONTROLLER, f"sbatch --parsable {HERE}/job.sbatch", user="trainer").split(";")[0]
        self.id = self.id.strip()

    def on_data(self, *words: str) -> str:
        """`hyperpod-kit data …` by the trainer's own Python."""
        return self._driver.on(WORKER, shlex.join([PYTHON, "-m", "hyperpod_kit.data.cli", *words]), user="trainer")

    def out(self) -> str:
        return self._driver.on(WORKER, f"cat {HERE}/out", check=False)

    def steps(self, rank: int) -> int:
        return sum(event.get("rank") == rank and "samples" in event for event in events(self.out()))

    def breaks(self, fault: str, said: str) -> None:
        """A fault at the mount, until a rank has met it and both have gone on."""
        met, before = self.out().count(said), [0, 0]
        self._driver.kit("rehearse", "break-mount", "--name", self._driver.name, fault, WORKER, "/mnt/data")

        def heard() -> bool:
            before[:] = [self.steps(rank) for rank in (0, 1)]
            return self.out().count(said) > met

        def gone_on() -> bool:
            # Rank 1's workers have read ahead.
            return all(self.steps(rank) > before[rank] + 6 for rank in (0, 1))

        with self.told():
            wait_until(f"a rank to meet {fault}", heard, timeout=60)
            wait_until(f"both ranks to go on after {fault}", gone_on, timeout=90)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """A wait that is in vain says what the job says."""
        try:
            yield
        except DemoError as err:
            raise DemoError(f"{err}\n{self.out()[-3000:]}") from None

    def let_end(self) -> int:
        """After the epoch behind the one that is under way; how many epochs that are."""
        epochs = 2 + max(int(event["epoch"]) for event in events(self.out()) if "samples" in event)
        self._driver.on(WORKER, f"echo {epochs} >{HERE}/epochs.new && mv {HERE}/epochs.new {HERE}/epochs")
        return epochs

    def finish(self) -> str:
        def ended() -> str:
            found = self._driver.on(CONTROLLER, f"scontrol -o show job {self.id}", check=False)
            state = found.partition("JobState=")[2].split()[0]
            return "" if state in LIVE else state

        return wait_until("the end of the job", ended, timeout=120)


def test_a_job_goes_on_while_its_mount_is_killed_and_hangs(storage: Driver) -> None:
    job = StreamedJob(storage)
    job.start()
    wait_until("steps of both ranks", lambda: min(job.steps(0), job.steps(1)) > 3, timeout=90)
    job.breaks("kill-daemon", "retrying")
    job.breaks("hang-daemon", "no answer for 1 s")
    epochs = job.let_end()
    assert job.finish() == "COMPLETED", job.out()
    ledger = json.loads(job.on_data("verify-ledger", f"{HERE}/ledger", "--json"))
    assert ledger["good"] and ledger["launches"] == 1 and ledger["rolled_back"] == 0, ledger
    assert [(one["once"], one["complete"]) for one in ledger["epochs"]] == [(ledger["samples"], True)] * epochs
    files = [path for path in corpus.files() if path.name[0] != "_"]  # which an index of a directory passes over
    wanted = Counter(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    for epoch in range(epochs):
        lines = [event for event in events(job.out()) if event.get("epoch") == epoch and "samples" in event]
        assert Counter(sample for line in lines for sample in line["samples"]) == wanted
    assert [event["class"] for event in events(job.out()) if event.get("event") == "ended"] == ["done"], job.out()
