"""A step of `job run` whose ranks are this process: what a supervisor makes of them costs no interpreter.

The ranks train as toy_trainer.py does, with its options, and leave the same behind: checkpoints, a verdict on the
restore, a record of each rank's end. A shell's command is its exit code. What needs real processes (a signal, a hang,
the wrapper's own work) is tested with some.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence
from unittest.mock import patch

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_RESUME_FROM, HPK_STATE
from hyperpod_kit.errors import CheckpointError, NoValidCheckpoint
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.base import exits
from hyperpod_kit.job.step.srun_step import StepPlan
from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict
from tests.support.damage import flip
from tests.unit.job.toy_trainer import commit_checkpoint, restore

EXIT = re.compile(r"exit (\d+)")


class RanksInProcess:
    """In place of SrunStep; it has ended by the time that it is made."""

    def __init__(self, plan: StepPlan, env: Mapping[str, str], descriptors: Optional[int] = None) -> None:
        with open(env["FAKE_SRUN_LOG"], "a") as log:
            log.write(json.dumps(plan.argv()[1:]) + "\n")
        self._began = time.time()
        self._ranks = int(env["SLURM_NTASKS"])
        with patch.dict(os.environ, env, clear=True):
            self._code = self._run(list(plan.command))

    def poll(self) -> Optional[int]:
        return self._code

    def end(self, *_: object, **__: object) -> int:
        return self._code

    def _run(self, command: List[str]) -> int:
        if command[0] == "/bin/sh":
            match = EXIT.fullmatch(command[-1])
            assert match, f"a command for real processes: {command}"
            return self._end(dict.fromkeys(range(self._ranks), int(match.group(1))))
        return self._train(_options(command[2:]))

    def _train(self, options: argparse.Namespace) -> int:
        root = os.environ[HPK_CHECKPOINT_ROOT]
        try:
            restored = restore(root, os.environ[HPK_RESUME_FROM])
        except CheckpointError as err:
            reasons = err.reasons if isinstance(err, NoValidCheckpoint) else ()
            verdict.write_verdict_if_under_job_run(
                os.environ, RestoreVerdict("", rejected=reasons, error=type(err).__name__, why=err.message)
            )
            return self._end(dict.fromkeys(range(self._ranks), 1))
        verdict.write_verdict_if_under_job_run(os.environ, restored)
        epoch, seq = (restored.order[0] + 1, restored.order[1]) if restored.order else (1, 0)
        begins = restored.step + 1
        for step in range(begins, options.steps + 1):
            if options.crash and step == options.crash_step and not _is_over(options.once):
                codes = {self._ranks - 1: options.crash_code, **dict.fromkeys(range(self._ranks - 1), -signal.SIGTERM)}
                return self._end(codes, begins, step - 1)
            if step % options.every == 0:
                seq += 1
                name = commit_checkpoint(root, epoch, seq, step)
                if options.spoil or step == options.spoil_at:
                    flip(Path(root, name, layout.shard_file(0)), 3)
        return self._end(dict.fromkeys(range(self._ranks), 0), begins, max(options.steps, restored.step))

    def _end(self, codes: Dict[int, int], begins: Optional[int] = None, reached: Optional[int] = None) -> int:
        """Write the record of each rank, the one that failed first as the earliest; srun's exit code."""
        for number, (rank, code) in enumerate(codes.items()):
            exits.write(
                os.environ[HPK_STATE],
                os.environ[HPK_ATTEMPT],
                exits.Exit(
                    rank=rank,
                    node=f"n{rank + 1}",
                    boot_id="",
                    code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    started=self._began,
                    ended=time.time() + number / 1000,
                    step=reached,
                    begins=begins,
                ),
            )
        # The wrapper ends well for a rank that has saved and asks to run again: it takes no other down.
        return max(0 if code == ExitCode.AGAIN else abs(code) for code in codes.values())


def _options(words: Sequence[str]) -> argparse.Namespace:
    """The options of toy_trainer.py that make sense without processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--pause", type=float)
    parser.add_argument("--crash", default="")
    parser.add_argument("--once")
    parser.add_argument("--spoil", action="store_true")
    parser.add_argument("--spoil-at", type=int)
    options = parser.parse_args(list(words))
    step, _, code = options.crash.partition(":")
    options.crash_step = int(step or 0)
    options.crash_code = -int(signal.SIGKILL) if code == "KILL" else int(code or 1)
    return options


def _is_over(once: Optional[str]) -> bool:
    """Whether a fault that happens once has happened; it does now."""
    if once is None:
        return False
    if os.path.exists(once):
        return True
    Path(once).touch()
    return False
