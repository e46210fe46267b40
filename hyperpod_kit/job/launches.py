"""Where a launch of an attempt's ranks begins, where srun may start them again (HyperPod's step retry).

A retried step has the environment of its first launch. So the wrappers of its ranks agree on a record of their launch:
the first launch of an attempt begins where `job run` said, a later one where the newest checkpoint is by then. Our own
Manager would find that by itself (repository/selection.py); other frameworks' trainers go where they are told.
"""

from __future__ import annotations

import os
import time
from typing import Dict, Mapping

from hyperpod_kit.environment import (
    HPK_ATTEMPT,
    HPK_CHECKPOINT_ROOT,
    HPK_PASSED_OVER,
    HPK_RESUME_FROM,
    HPK_RESUME_KIND,
    HPK_RESUME_MEMORY,
    HPK_RESUME_STEP,
    HPK_STATE,
    HPK_STEP_RETRY,
)
from hyperpod_kit.errors import JobError, NoValidCheckpoint
from hyperpod_kit.job import checkpoint_choice, shared_decision
from hyperpod_kit.job.foreign.quarantine import set_aside
from hyperpod_kit.slurm.environment import launch

PATIENCE = 600.0
"""Seconds for the record of a launch: another framework's checkpoint is read before it is named."""

_PREFIX = "launch-"


def told(env: Mapping[str, str]) -> Dict[str, str]:
    """The environment of a rank of this launch. Raises JobError, NoValidCheckpoint, other CheckpointErrors, OSError."""
    if env.get(HPK_STEP_RETRY) != "1":
        return dict(env)
    root, state, attempt = env[HPK_CHECKPOINT_ROOT], env[HPK_STATE], env[HPK_ATTEMPT]
    passed = {name: "passed over by `job run`" for name in env.get(HPK_PASSED_OVER, "").split()}

    def decide() -> shared_decision.Record:
        if not _launched_before(state, attempt):
            first = {"from": env[HPK_RESUME_FROM], "step": int(env[HPK_RESUME_STEP]), "kind": env[HPK_RESUME_KIND]}
            return {**first, "memory": env.get(HPK_RESUME_MEMORY, "")}
        try:
            choice = checkpoint_choice.choose(root, passed_over=passed)
        except NoValidCheckpoint as err:
            return {"from": None, "rejected": checkpoint_choice.reasons(err.reasons)}
        if choice.kind != checkpoint_choice.OURS:
            set_aside(root, [name for name, _ in choice.rejected if name not in passed], now=time.time())
        return {**choice.fields(), "memory": "0" if choice.stepped_back else ""}

    name = f"{_PREFIX}{attempt}.{launch(env)}"
    record = shared_decision.agree(state, name, decide, patience=PATIENCE, head_start=PATIENCE)
    wrong = shared_decision.problem(record)
    if wrong:
        raise JobError(f"the record of this launch is not to be trusted: {wrong}")
    if record["from"] is None:
        raise NoValidCheckpoint(root, [(one["attempt"], one["why"]) for one in record.get("rejected") or []])
    kept = {name: value for name, value in env.items() if name != HPK_RESUME_MEMORY}
    memory = {HPK_RESUME_MEMORY: "0"} if record.get("memory") == "0" else {}
    kind = record.get("kind", checkpoint_choice.OURS)
    return {**kept, **checkpoint_choice.told_to_ranks(record["from"], record["step"], kind), **memory}


def _launched_before(state: str, attempt: str) -> bool:
    return any(
        name.startswith(f"{_PREFIX}{attempt}.") and name.endswith(".json")
        for name in os.listdir(os.path.join(state, "decisions"))
    )
