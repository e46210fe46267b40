"""Chooses where a launch of an attempt's ranks begins, where srun may start them again (HyperPod's step retry).

A retried step has the environment of its first launch. So the wrappers of its ranks agree on a record of their launch:
the first launch of an attempt begins where `job run` chose, a later one at what is the newest checkpoint by then. Our
own Manager would find that by itself (repository/selection.py); other frameworks' trainers need to be told.
"""

from __future__ import annotations

import os
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

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
    HPK_UNREADABLE,
)
from hyperpod_kit.errors import JobError, NoValidCheckpoint
from hyperpod_kit.job.decide.budget import PoisonCheckpoint
from hyperpod_kit.job.foreign.quarantine import set_aside
from hyperpod_kit.job.records import ledger_row
from hyperpod_kit.job.resume import checkpoint_choice, shared_decision, unfinished_flushes
from hyperpod_kit.slurm import write_once
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.slurm.verdict import RestoreVerdict

PATIENCE = 600.0
"""Seconds for the record of a launch: another framework's checkpoint is read before it is named."""

STORAGE_PATIENCE = 300.0
"""Seconds of them in which a newer checkpoint that cannot be read just now is tried again."""

_PREFIX = "launch-"


def step_retry_variables(poison: Optional[PoisonCheckpoint], unreadable: Sequence[str]) -> Dict[str, str]:
    """Return the variables of a step whose ranks srun may start again: that it may, and the checkpoints that such a
    launch must not take."""
    passed_over = ""
    if poison:
        passed_over = poison.name
    return {
        HPK_STEP_RETRY: "1",
        HPK_PASSED_OVER: passed_over,
        HPK_UNREADABLE: " ".join(unreadable),
    }


def environment_of_current_launch(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of a rank of this launch.

    Raises JobError, NoValidCheckpoint, other CheckpointErrors, OSError.
    """
    if env.get(HPK_STEP_RETRY) != "1":
        return dict(env)
    root, state, attempt = env[HPK_CHECKPOINT_ROOT], env[HPK_STATE], env[HPK_ATTEMPT]
    passed = {name: "passed over by `job run`" for name in env.get(HPK_PASSED_OVER, "").split()}
    unreadable = {name: "it could not be read from storage" for name in env.get(HPK_UNREADABLE, "").split()}

    def decide() -> shared_decision.Record:
        if not _launched_before(state, attempt):
            first = {"from": env[HPK_RESUME_FROM], "step": int(env[HPK_RESUME_STEP]), "kind": env[HPK_RESUME_KIND]}
            return {**first, "memory": env.get(HPK_RESUME_MEMORY, "")}
        return _choose_for_later_launch(root, state, passed, unreadable)

    name = f"{_PREFIX}{attempt}.{step_launch_id_with_srun_port(env)}"
    record = shared_decision.read_or_make_shared_record(state, name, decide, patience=PATIENCE, head_start=PATIENCE)
    wrong = shared_decision.problem(record)
    if wrong:
        raise JobError(f"the record of this launch cannot be trusted: {wrong}")
    if record["from"] is None:
        raise NoValidCheckpoint(
            root, [(rejection["attempt"], rejection["why"]) for rejection in record.get("rejected") or []]
        )
    rank_environment = {name: value for name, value in env.items() if name != HPK_RESUME_MEMORY}
    kind = record.get("kind", checkpoint_choice.KIT_KIND)
    rank_environment.update(checkpoint_choice.told_to_ranks(record["from"], record["step"], kind))
    if record.get("memory") == "0":
        rank_environment[HPK_RESUME_MEMORY] = "0"
    return rank_environment


def _choose_for_later_launch(
    root: str, state: str, passed: Mapping[str, str], unreadable: Mapping[str, str]
) -> shared_decision.Record:
    """Return the record of a launch after the first: the newest checkpoint by now, or why there is none.

    Damaged checkpoints of other frameworks are set aside. Raises CheckpointError, OSError.
    """
    try:
        choice = unfinished_flushes.choose_after_flushes_end(
            lambda: checkpoint_choice.choose_waiting_for_unread_newer(
                root,
                state,
                passed,
                unreadable,
                STORAGE_PATIENCE,
                checkpoint_choice.chooser_reusing_foreign_proofs(root, state),
            ),
            unfinished_flushes.make_note_reader(root),
            STORAGE_PATIENCE,
            root=root,
        )
    except NoValidCheckpoint as err:
        return {"from": None, "rejected": checkpoint_choice.reasons(err.reasons)}
    if choice.kind != checkpoint_choice.KIT_KIND:
        set_aside(root, [name for name, _ in choice.rejected if name not in passed], now=time.time())
    memory = ""
    if choice.stepped_back:
        memory = "0"
    return {**choice.fields(), "t": round(time.time(), 3), "memory": memory}


def foreign_choices_of_later_launches(state: str, attempt: str) -> List[RestoreVerdict]:
    """Return the checkpoints of other frameworks that later launches of an attempt had to take, oldest first.

    The trainers of these frameworks leave no verdict of their own. Raises OSError.
    """
    dated_verdicts: List[Tuple[float, RestoreVerdict]] = []
    for stem, _, value in write_once.read_all_records(os.path.join(state, "decisions")):
        order, kind = value.get("order"), value.get("kind")
        if not stem.startswith(f"{_PREFIX}{attempt}.") or kind == checkpoint_choice.KIT_KIND or not order:
            continue
        if shared_decision.problem(value) or ledger_row.problem({"order": order, "t": value.get("t")}):
            continue
        at = (int(order[0]), int(order[1]))
        dated_verdicts.append(
            (float(value.get("t") or 0.0), RestoreVerdict(value["from"], value["step"], at, "storage"))
        )
    return [verdict for _, verdict in sorted(dated_verdicts, key=lambda pair: pair[0])]


def _launched_before(state: str, attempt: str) -> bool:
    return any(
        name.startswith(f"{_PREFIX}{attempt}.") and name.endswith(".json")
        for name in os.listdir(os.path.join(state, "decisions"))
    )
