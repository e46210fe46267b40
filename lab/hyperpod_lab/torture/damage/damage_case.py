"""A look at a damaged root from a process of its own: what `verify` says and what a restore returns.

A look may hang, and it may eat memory: whoever started the process ends it, and it has a bound on what it can allocate.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import warnings
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hyperpod_lab.torture import life

DEADLINE = 60.0
"""Seconds for one look; a machine that is busy with other things needs some."""

MOST = 300 << 20
"""Bytes of memory that one look may take in all, torch included."""

_GUARD = 1 << 30
"""Bytes of address space that a process of looks may add: what reads without an end must not take the machine along.
Threads reserve far more of it than they use."""

NOBODY = 65534


@dataclass(frozen=True)
class CaseResult:
    """What was seen. `restored`: (epoch, step), None when nothing was. `error`: a refusal, or whatever else was raised.

    `declared`: the error is one that the engine says it raises. `rejected`: newer ones that were passed over.
    `memory`: the most that the process had meanwhile, in bytes.
    """

    verify: int = -1
    restored: tuple[int, int] | None = None
    wrong: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    error: str = ""
    declared: bool = True
    memory: int = 0


class RootInspector:
    """Looks at one root after the other; a process that hung or died is replaced.

    `pristine`: an undamaged root that is looked at first, while everything can be read that is imported late; what
    follows is seen by a user who is not root.
    """

    def __init__(self, seed: int, *, pristine: str = "") -> None:
        self._seed = seed
        self._pristine = pristine
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def inspect(self, root: str) -> CaseResult:
        """Run verify and a restore of `root` in the inspection process and return what came of it."""
        if self._process is None or self._pipe is None:
            parent_pipe, child_pipe = life.CONTEXT.Pipe()
            self._pipe = parent_pipe
            self._process = life.spawn(_serve_inspections, (child_pipe, self._seed, self._pristine))
            child_pipe.close()
        try:
            self._pipe.send(root)
            if self._pipe.poll(DEADLINE):
                case_result: CaseResult = self._pipe.recv()
                return case_result
            self.close()
            return CaseResult(error=f"it did not end within {DEADLINE:g} s", declared=False)
        except (EOFError, OSError):
            self._process.join(DEADLINE)
            code = self._process.exitcode
            self.close()
            return CaseResult(error=f"it died: exit code {code}", declared=False)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _serve_inspections(pipe: Connection, seed: int, pristine: str) -> None:
    for name in [name for name in os.environ if name.startswith(("HPK_", "SLURM_"))]:
        del os.environ[name]
    import torch

    torch.set_num_threads(1)
    from hyperpod_lab.torture.subject import Subject

    warnings.simplefilter("ignore", RuntimeWarning)
    subject = Subject(seed, width=8)
    if pristine:
        _verify_and_restore(pristine, subject)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    else:
        with open("/proc/self/statm", encoding="ascii") as file:
            had = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (had + _GUARD, had + _GUARD))
    while True:
        try:
            root = pipe.recv()
        except EOFError:
            os._exit(0)
        measured = _reset_peak_memory()
        case_result = _verify_and_restore(root, subject)
        if measured:
            case_result = replace(case_result, memory=_peak_memory())
        pipe.send(case_result)


def _reset_peak_memory() -> bool:
    """Reset the peak memory of this process; False where it may not."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
        return True
    return False


def _peak_memory() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def _verify_and_restore(root: str, subject: Any) -> CaseResult:
    fields: dict[str, Any] = {"verify": _run_verify_command(root)}
    try:
        fields.update(_restore_and_compare(root, subject))
    except BaseException as err:
        from hyperpod_kit.errors import CheckpointError

        fields.update(error=f"{type(err).__name__}: {err}"[:500], declared=isinstance(err, CheckpointError))
    return CaseResult(**fields)


def _run_verify_command(root: str) -> int:
    from hyperpod_kit.checkpoint.commands import cli

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return cli.main(["verify", root])
        except BaseException:
            return -1


def _restore_and_compare(root: str, subject: Any) -> dict[str, Any]:
    """Restore as `Manager` does, without agents: nothing here depends on them. Return what was restored and what
    differs."""
    from hyperpod_kit.checkpoint import Restored
    from hyperpod_kit.checkpoint.agent_client import startup
    from hyperpod_kit.checkpoint.ranks.collectives import Ranks
    from hyperpod_kit.checkpoint.repository.store.open import open_store
    from hyperpod_kit.checkpoint.restore import candidate_run, restore

    subject.clear()
    ranks = Ranks(alone=True)
    start = startup.agree_on_start_identity(ranks, root, None, None)
    nearer = candidate_run.NearerTiers(start.run.run_id, tiers=(), threads=1)
    got = restore.restore(ranks, open_store(root), subject.state, nearer=nearer, copies_of_ranks=()).got
    if not isinstance(got, Restored):
        return {"error": "started from scratch", "declared": False}
    return {
        "restored": (got.epoch, got.step),
        "wrong": subject.find_differences(got.epoch, got.step),
        "rejected": [name for name, _ in got.rejected],
    }
