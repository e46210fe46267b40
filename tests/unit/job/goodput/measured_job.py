"""A real job on a private Slurm with a SIGKILL and a hang: what `job status` shows, beside what was measured outside.

    python -m tests.unit.job.goodput.measured_job

Outside is what the time ledger is not made of: the log of slurmctld, the kernel's word on when processes were started,
a look at the processes every 0.1 s, and what the ranks wrote down of themselves by their own watch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from hyperpod_kit.job.goodput.cause import LABELS, TimeCause
from tests.support.wait import until
from tests.unit.job.goodput.process_start import started
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm, running
from tests.unit.job.test_real_slurm import MAIN, PYTHON
from tests.unit.job.test_warned_on_slurm import LIBRARIES, USER, interpreter

TRAINER = Path(__file__).with_name("measured_trainer.py")
STALL = 15
GPUS = 4
"""Of each of the two nodes."""
EVERY = 0.1
"""Seconds between two looks at the processes."""
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

AT_SLURMS_MOMENTS = (TimeCause.QUEUE, TimeCause.START_UP, TimeCause.CLOSE)
"""Causes that begin or end at a moment of which Slurm tells only the whole second: up to one more than is wrong
otherwise."""

_SUBMITTED, _ALLOCATED, _DONE = "_slurm_rpc_submit_batch_job", "sched", "_job_complete"


class SlurmWithGpus(PrivateSlurm):
    """Each node has four, which are files."""

    def start(self) -> None:
        for number in range(GPUS):
            (self.base / f"gpu{number}").touch()
        (self.base / "gres.conf").write_text(f"Name=gpu File={self.base}/gpu[0-{GPUS - 1}]\n")
        super().start()


class Life(NamedTuple):
    """Of a process: Unix seconds; `end`: when it was seen last."""

    words: str
    start: float
    end: float


class Spent(NamedTuple):
    start: float
    end: float
    cause: TimeCause
    step: Optional[int] = None


@dataclass
class Look:
    """What `job status` showed at a moment."""

    name: str
    time: Dict[str, Any]
    attempts: List[Dict[str, Any]]

    @property
    def at(self) -> float:
        return float(self.time["until"])


@dataclass
class Comparison:
    """Seconds by cause, shown and true; what was shown of the attempt at work, how old that was, and the true step."""

    name: str
    shown: Dict[TimeCause, float]
    truth: Dict[TimeCause, float]
    now: Optional[Dict[str, Any]] = None
    step: int = -1
    age: float = 0.0

    def points(self, cause: TimeCause) -> float:
        """By how many percentage points of the time the one is beside the other."""
        return 100 * abs(self.share(self.shown, cause) - self.share(self.truth, cause))

    def is_right(self, points: float) -> bool:
        """Whether each cause is within so many; within a second is right, too."""
        return all(self._is_right_in(cause, points) for cause in TimeCause)

    def _is_right_in(self, cause: TimeCause, points: float) -> bool:
        difference = abs(self.shown[cause] - self.truth[cause])
        if cause in AT_SLURMS_MOMENTS:
            return difference <= 1.0 + points / 100 * sum(self.truth.values())
        return self.points(cause) <= points or difference <= 1.0

    @staticmethod
    def share(seconds: Dict[TimeCause, float], cause: TimeCause) -> float:
        return seconds[cause] / sum(seconds.values())

    def _words_of_now(self) -> str:
        if self.now is None or self.now["step"] is None:
            return ""
        return f"; at step {self.now['step']}, {self.age:.1f} s old, where outside had {self.step}"

    def lines(self) -> List[str]:
        found = [
            f"{self.name}: {sum(self.truth.values()):.1f} s{self._words_of_now()}",
            f"{'':20}{'shown':>16}{'outside':>16}  points",
        ]
        for cause in TimeCause:
            if self.shown[cause] or self.truth[cause]:
                pair = [
                    f"{seconds[cause]:7.1f} s{100 * self.share(seconds, cause):5.1f} %"
                    for seconds in (self.shown, self.truth)
                ]
                found.append(f"{LABELS[cause]:20}{pair[0]:>16}{pair[1]:>16}{self.points(cause):8.1f}")
        return found


@dataclass
class Outside:
    """What is seen of one job without asking it."""

    slurm: PrivateSlurm
    job: str
    mark: Path
    lives: Dict[int, Life] = field(default_factory=dict)
    looked: float = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The processes are looked at every now and then."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(EVERY):
                self._look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look(self) -> None:
        now, pids = time.time(), self.slurm.processes()
        for pid in pids:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                known = self.lives.get(pid)
                start = known.start if known is not None else started(pid)
            except OSError:
                continue
            if words:
                self.lives[pid] = Life(words, start, now)
        self.looked = now

    @property
    def is_over(self) -> bool:
        """Whether `job run` has been seen, and is there no more."""
        runs = [life.end for life in list(self.lives.values()) if f"{MAIN} run" in life.words]
        return bool(runs) and max(runs) < self.looked

    def stamps(self, rank: int = 0) -> List[Dict[str, Any]]:
        """What a rank wrote down."""
        path = Path(f"{self.mark}.{rank}")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def moment(self, words: str) -> float:
        """Of the first line of slurmctld's log about the job that has these words."""
        for line in (self.slurm.base / "slurmctld.log").read_text().splitlines():
            if words in line and re.search(rf"JobId={self.job}\b", line):
                return datetime.strptime(line[1:24], "%Y-%m-%dT%H:%M:%S.%f").timestamp()
        raise AssertionError(f"slurmctld has logged nothing of {words} of job {self.job}")

    def launches(self) -> List[Life]:
        """The sruns that started ranks, in their order: the first process of each."""
        sruns = [
            life
            for life in list(self.lives.values())
            if re.match(r"\S*srun\b", life.words) and TRAINER.name in life.words
        ]
        found: List[Life] = []
        for life in sorted(sruns, key=lambda life: life.start):
            if found and life.start < found[-1].end:
                found[-1] = found[-1]._replace(end=max(found[-1].end, life.end))
            else:
                found.append(life)
        return found

    def rank_ends(self, rank: int) -> List[float]:
        """When the process of this rank of each attempt was seen last."""
        starts = [row["start"] for row in self.stamps(rank) if row["what"] == "start-up"]
        ranks = [life for life in self.lives.values() if re.match(r"\S*python\S* \S*" + TRAINER.name, life.words)]
        return [min(ranks, key=lambda life: abs(life.start - start)).end for start in starts]

    def step(self, at: float) -> int:
        """The last one that rank 0 had completed."""
        return max(row["step"] for row in self.stamps() if row["what"] == "step" and row["end"] <= at)

    def truth(self, at: float) -> Dict[TimeCause, float]:
        """Seconds by cause up to a moment, as they were to be judged then."""
        spent = [one for one in self._spent() if one.start < at]
        begun: List[Tuple[float, int]] = [
            (row["start"], row["step"]) for row in self.stamps() if row["what"] == "step" and row["start"] < at
        ]
        seconds = {cause: 0.0 for cause in TimeCause}
        for one in spent:
            again = one.step is not None and any(start > one.end and step <= one.step for start, step in begun)
            cause = TimeCause.TWICE if again and one.cause is TimeCause.LASTED else one.cause
            seconds[cause] += min(one.end, at) - one.start
        return seconds

    def _spent(self) -> List[Spent]:
        submitted, allocated = self.moment(_SUBMITTED), self.moment(_ALLOCATED)
        found = [Spent(submitted, allocated, TimeCause.QUEUE)]
        launches, ends, others, stamps = self.launches(), self.rank_ends(0), self.rank_ends(1), self.stamps()
        attempts = list(dict.fromkeys(row["attempt"] for row in stamps))
        assert len(launches) == len(attempts) == len(ends), (launches, attempts)
        at = allocated
        for number, (launch, attempt, end, killed) in enumerate(zip(launches, attempts, ends, others)):
            found.append(Spent(at, launch.start, TimeCause.BACK_OFF if number else TimeCause.START_UP))
            rows = [row for row in stamps if row["attempt"] == attempt]
            found.append(Spent(launch.start, rows[0]["start"], TimeCause.START_UP))
            found += _of_rows(rows)
            at = found[-1].end
            if number + 1 == len(launches):
                break
            if (self.mark.parent / f"{self.mark.name}.hangs").exists() and number == 1:
                found.append(Spent(at, launch.end, TimeCause.HANG))
            else:
                # A step was cut short by the death of the other rank; this one saw it, and `job run` saw them both.
                killed = max(at, killed)
                end = max(killed, end)
                found += [Spent(at, killed, TimeCause.TWICE), Spent(killed, end, TimeCause.HANG)]
                found.append(Spent(end, launch.end, TimeCause.BACK_OFF))
            at = launch.end
        found.append(Spent(at, self.moment(_DONE), TimeCause.CLOSE))
        return found


_CAUSES = {
    "start-up": TimeCause.START_UP,
    "first step": TimeCause.START_UP,
    "restore": TimeCause.RESTORE,
    "step": TimeCause.LASTED,
    "save": TimeCause.SAVES,
    "close": TimeCause.CLOSE,
}


def _of_rows(rows: List[Dict[str, Any]]) -> List[Spent]:
    """Each from the end of the one before: what lies between two is some instructions long."""
    found: List[Spent] = []
    at = rows[0]["start"]
    for row in rows:
        found.append(Spent(at, row["end"], _CAUSES[row["what"]], row["step"] if row["what"] == "step" else None))
        at = row["end"]
    return found


class MeasuredJob:
    """Runs it once, and looks at it at several moments."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.place = Path(tempfile.mkdtemp(prefix="work-", dir=slurm.base))
        self.memory = Path(tempfile.mkdtemp(prefix="hpk-measured-", dir="/dev/shm"))
        for folder in (self.place, self.memory):
            folder.chmod(0o777)
        self.looks: List[Look] = []

    def run(self) -> List[Comparison]:
        """What was shown beside what is true, at each look."""
        try:
            outside = self._played()
        finally:
            shutil.rmtree(self.memory, ignore_errors=True)
        found = []
        for look in self.looks:
            shown = {cause: float(look.time["seconds"][cause.value]) for cause in TimeCause}
            now = look.time["now"]
            at = now["at"] if now else look.at
            found.append(Comparison(look.name, shown, outside.truth(look.at), now, outside.step(at), abs(look.at - at)))
        return found

    def _played(self) -> Outside:
        script, mark = self.place / "job.sbatch", self.place / "stamps"
        paths = os.pathsep.join([str(REPOSITORY), *LIBRARIES])
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --gres=gpu:{GPUS} --auto-resume=1\n"
            f"#SBATCH --open-mode=append -o {self.place}/out\n"
            f"export HPK_SHM_DIR={self.memory} PYTHONPATH={paths} GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1\n"
            f"exec {PYTHON} -I -S {MAIN} run --stall {STALL} --checkpoint-root {self.place}/root -- "
            f"{interpreter()} {TRAINER} {mark}\n"
        )
        job = self.slurm.sbatch(str(script), cwd=self.place)
        outside = Outside(self.slurm, job, mark)
        due = [
            ("while it trains", lambda: self._reached(outside, 12)),
            ("while the ranks start again", lambda: len(outside.launches()) == 2),
            ("while it trains again", lambda: self._reached(outside, 35)),
            ("while it hangs", lambda: self._hangs_for(mark, 8.0)),
            ("while the ranks start for the third time", lambda: len(outside.launches()) == 3),
        ]

        def is_over() -> bool:
            if due and due[0][1]():
                self._look(due.pop(0)[0], job)
            return outside.is_over and self.slurm.state(job) in OVER

        with outside.watching():
            until(is_over, timeout=300, what="end of the job")
        assert self.slurm.state(job) == "COMPLETED", (self.place / "out").read_text()[-3000:]
        self._look("at its end", job)
        return outside

    @staticmethod
    def _reached(outside: Outside, step: int) -> bool:
        return any(row["step"] == step and row["what"] == "step" for row in outside.stamps())

    @staticmethod
    def _hangs_for(mark: Path, seconds: float) -> bool:
        hangs = Path(f"{mark}.hangs")
        return hangs.exists() and time.time() - hangs.stat().st_mtime > seconds

    def command(self, *words: str) -> Dict[str, Any]:
        """What a command of `hyperpod-kit job` has about the root."""
        argv = ["env", f"HOME={self.place}", PYTHON, "-I", "-S", str(MAIN), *words, "--root", f"{self.place}/root"]
        found: Dict[str, Any] = json.loads(self.slurm.call(*argv, "--json", as_user=True))
        return found

    def _look(self, name: str, job: str) -> None:
        shown = self.command("status", job)
        [time_of_job] = shown["time"]
        self.looks.append(Look(name, time_of_job, shown["attempts"]))


@contextlib.contextmanager
def cluster() -> Iterator[PrivateSlurm]:
    """Two nodes with GPUs."""
    with running(SlurmWithGpus, nodes=2, user=USER, node=f"Gres=gpu:{GPUS}", more="GresTypes=gpu\n") as slurm:
        yield slurm


def main() -> None:
    with cluster() as slurm:
        for comparison in MeasuredJob(slurm).run():
            print("\n".join(comparison.lines()), flush=True)


if __name__ == "__main__":
    main()
