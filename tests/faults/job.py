"""One job under a fault: submitted, watched through its log and ledger, broken from outside, timed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from hyperpod_kit.job.records.ledger import read
from tests.faults.site import Site
from tests.faults.trainer import weights
from tests.support.wait import until

SCRIPT = """\
#!/bin/bash
#SBATCH --ntasks-per-node=1 --open-mode=append --requeue --auto-resume=1
#SBATCH --chdir={there} --output={there}/{name}.out
{more}exec {run} --checkpoint-root {root} {options} -- {python} {there}/{program} {library} {trainer}
"""


@dataclass(frozen=True)
class Fault:
    """A fault that was made: when (Unix seconds), which attempt it hit and which launch of its ranks ("" for none)."""

    at: float
    attempt: str
    launch: str = ""


class Job:
    """A job of the ordinary user with a checkpoint root of its own."""

    def __init__(self, site: Site, name: str = "", id: str = "") -> None:
        self.site = site
        self.name = name or f"job-{uuid.uuid4().hex[:8]}"
        self.id = id
        self.container = site.container
        self._log = site.here / f"{self.name}.out"
        self.checkpoint_root = site.root(self.name)
        self.root = site.here / self.name  # of a FolderRoot

    def submit(
        self, *trainer: str, sbatch: Sequence[str] = ("-N2",), options: str = "", program: str = "trainer.py"
    ) -> Job:
        """sbatch; `options` are those of `job run`, `trainer` those of the trainer, `program` its file."""
        script = self.site.here / f"{self.name}.sbatch"
        inside = f"--srun-args '{self.container}'" if self.container else ""
        script.write_text(
            SCRIPT.format(
                there=self.site.there,
                name=self.name,
                run=self.site.run,
                more=self.checkpoint_root.script,
                root=self.checkpoint_root.told,
                options=f"{self.checkpoint_root.options} {inside} {options}",
                python=self.site.python,
                library=self.site.library,
                program=program,
                trainer=" ".join(trainer),
            )
        )
        script.chmod(0o755)
        self.id = (
            self.site.slurm("sbatch", "--parsable", *sbatch, f"{self.site.there}/{script.name}", user=True)
            .strip()
            .split(";")[0]
        )
        return self

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def lines(self) -> List[Dict[str, Any]]:
        """Every JSON object of the log."""
        found = []
        for line in self.log.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line[line.index("{") :])
                if isinstance(value, dict):
                    found.append(value)
        return found

    def rows(self, event: str = "") -> List[Dict[str, Any]]:
        """The ledger: `attempt`, `ended`, `requeue`, `gave_up`."""
        return [
            row for row in read(str(self.checkpoint_root.state / "attempts.jsonl")) if event in ("", row.get("event"))
        ]

    @property
    def classes(self) -> List[str]:
        return [str(row["class"]) for row in self.rows("ended")]

    def progress(self) -> List[Dict[str, Any]]:
        """Rank 0's steps."""
        return [line for line in self.lines() if "step" in line and "attempt" in line and "event" not in line]

    def at_step(self, step: int, timeout: float = 60) -> Job:
        """Wait until it has done that step."""
        self._wait(f"step {step}", lambda: any(line["step"] >= step for line in self.progress()), timeout)
        return self

    def running(self, timeout: float = 60) -> Job:
        """Wait until the ranks that run now have done a step and a save."""

        def saved() -> bool:
            lines, now = self.lines(), (self.attempt(), self.launch())
            return any(line.get("saved") and (line["attempt"], line["launch"]) == now for line in lines)

        self._wait("a save", saved, timeout)
        return self

    def node_of(self, rank: int) -> str:
        """The node of a rank, as it said itself when it was started last."""
        return str(next(line["node"] for line in reversed(self.lines()) if line.get("rank") == rank and "at" in line))

    def launch(self) -> str:
        """Which start of the attempt's ranks did the last step, "" when none has done one."""
        done = self.progress()
        return str(done[-1]["launch"]) if done and done[-1]["attempt"] == self.attempt() else ""

    def attempt(self) -> str:
        rows = self.rows("attempt")
        return str(rows[-1]["attempt"]) if rows else ""

    def checkpoints(self) -> List[Path]:
        """Committed ones, oldest first."""
        return sorted(path.parent for path in self.root.glob("seq-*/MANIFEST.json"))

    def flip(self, file: str, *checkpoints: str) -> None:
        """Turn a bit of a file of these checkpoints, of the newest when none is named."""
        for name in checkpoints or self.checkpoint_root.committed()[-1:]:
            self.checkpoint_root.flip(name, file)

    def broken(self, act: Callable[[], object]) -> Fault:
        """Make a fault and note the moment."""
        attempt, launch = self.attempt(), self.launch()
        at = time.time()
        act()
        return Fault(at, attempt, launch)

    def resumed(self, fault: Fault, timeout: float = 60) -> float:
        """Seconds from the fault to the first step of a later attempt, or of a later launch of this one's ranks."""
        if not fault.launch:
            return self.resumed_after(fault.attempt, fault.at, timeout)

        def first() -> float:
            # Of a heterogeneous job a later run may have a launch of the same name, on the same nodes.
            hit = (fault.attempt, fault.launch)
            later = (line for line in self.progress() if (line["attempt"], line["launch"]) != hit)
            return next((line["t"] - fault.at for line in later if line["t"] > fault.at), 0.0)

        return round(self._wait("a resumed step", first, timeout), 1)

    def resumed_after(self, attempt: str, at: float, timeout: float) -> float:
        """Seconds from the moment `at` to the first step of another attempt than this one."""

        def first() -> float:
            return next(
                (line["t"] - at for line in self.progress() if line["attempt"] != attempt and line["t"] > at), 0.0
            )

        return round(self._wait("a resumed step", first, timeout), 1)

    def start_up(self) -> float:
        """Seconds from the choice of a checkpoint to the first step, of the first attempt: the program's own."""
        return round(self.progress()[0]["t"] - self.rows("attempt")[0]["t"], 1)

    def finish(self, timeout: float = 90) -> str:
        """Slurm's last word; HELD for a job that waits for a person."""

        def ended() -> str:
            shown = self.show()
            state = shown.get("JobState", "")
            if state == "PENDING" and shown.get("Reason", "").startswith("JobHeld"):
                return "HELD"
            return (
                state
                if state
                in (
                    "COMPLETED",
                    "FAILED",
                    "CANCELLED",
                    "TIMEOUT",
                    "SPECIAL_EXIT",
                    "NODE_FAIL",
                    "PREEMPTED",
                    "OUT_OF_MEMORY",
                    "DEADLINE",
                )
                else ""
            )

        return str(self._wait("end", ended, timeout))

    def show(self) -> Dict[str, str]:
        """scontrol show job."""
        text = self.site.slurm("scontrol", "-o", "show", "job", self.id, check=False)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def weights(self) -> List[str]:
        """What the ranks of the last attempt ended with, by rank."""
        found = {
            line["rank"]: line["weights"]
            for line in self.lines()
            if "weights" in line and line["attempt"] == self.attempt()
        }
        return [found[rank] for rank in sorted(found)]

    def ended_well(self, steps: int, ranks: int = 2, timeout: float = 90) -> None:
        """It completes, with the weights of a run that nobody disturbed. Raises AssertionError."""
        assert self.finish(timeout) == "COMPLETED", self.told()
        assert self.weights() == weights(ranks, steps), self.told()

    def processes(self, rank: int) -> Dict[str, int]:
        """Pids on this host of the rank's program, of its `wrapper`, of its slurmstepd (`step`); of rank 0 also `srun`.

        srun has the environment of the batch script, and that is rank 0's.
        """
        ours = {f"HPK_CHECKPOINT_ROOT={self.checkpoint_root.told}".encode(), f"SLURM_PROCID={rank}".encode()}
        found: Dict[str, int] = {}
        sruns: Dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if not ours <= set((entry / "environ").read_bytes().split(b"\0")):
                    continue
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if words[0] == b"srun":
                    sruns[int(entry.name)] = parent
                elif b"exec" in words:
                    found["wrapper"], found["step"] = int(entry.name), parent
                elif b"--steps" in words:
                    found["rank"] = int(entry.name)
        # srun has a child of the same name, which looks after it.
        for pid in (pid for pid, parent in sruns.items() if parent not in sruns):
            found["srun"] = pid
        return found

    def send(self, number: signal.Signals, *what: str, rank: int = 1) -> Fault:
        """Signal processes of a rank: `rank`, `wrapper`, `step`."""
        found = self._wait("a rank", lambda: self._whole(self.processes(rank)), 20)
        return self.broken(lambda: [os.kill(found[one], number) for one in what or ("rank",)])

    @staticmethod
    def _whole(found: Dict[str, int]) -> Dict[str, int]:
        return found if {"rank", "wrapper", "step"} <= set(found) else {}

    def told(self) -> str:
        """Everything that helps to understand a failure."""
        return f"{self.site.slurm('squeue', check=False)}\n{self.log[-6000:]}\n{self.rows()[-4:]}\n{self.show()}"

    def _wait(self, what: str, condition: Callable[[], Any], timeout: float) -> Any:
        try:
            return until(condition, timeout, what=f"{what} of {self.name} ({self.id})")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.told()}") from None
