"""The checkpoint that an attempt starts from, decided once for all ranks and handed to them in the environment."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.checkpoint.repository.records import commit_records
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.environment import HPK_RESUME_FROM, HPK_RESUME_KIND, HPK_RESUME_MEMORY, HPK_RESUME_STEP
from hyperpod_kit.errors import NoCheckpoint, NoValidCheckpoint
from hyperpod_kit.job.records import state_place

Chooser = Callable[[str, Mapping[str, str]], Any]
"""chooser(root, passed_over) -> Found(attempt, epoch, seq, step, rejected).

Raises NoCheckpoint, NoValidCheckpoint.
"""

NONE = "none"
"""HPK_RESUME_FROM of a run that starts at step 0 because nothing was ever committed."""

KIT_KIND = commit_records.KIT_KIND

KINDS = (KIT_KIND, "dcp", "megatron", "deepspeed", "huggingface", "lightning")
"""HPK_RESUME_KIND: the frameworks whose checkpoints are found."""

PROVEN = {
    "crc": "every CRC-32 fits",
    "complete": "all its files exist, but their bytes are not proven",
    "marker": "the framework recorded the end of the save, and nothing else is proven",
}


class Choice(NamedTuple):
    """`source`: an attempt directory's name, or `none`. `order`: its (epoch, seq). `rejected`: newer ones, and why.

    `kind`, `proof`: the framework that wrote it, and how far it was proven (foreign/candidate.py), "" for every byte.
    `unread`: newer ones that storage would not give up just now.
    `stepped_back`: a newer valid one was passed over, so what memory and local disks hold must not be used either.
    """

    source: str
    step: int
    order: Optional[Tuple[int, int]] = None
    rejected: Tuple[Tuple[str, str], ...] = ()
    stepped_back: bool = False
    kind: str = KIT_KIND
    proof: str = ""
    unread: Tuple[str, ...] = ()

    def environment(self) -> Dict[str, str]:
        """Return the variables that tell the ranks where they resume, and whether they may use what memory holds."""
        resume_variables = told_to_ranks(self.source, self.step, self.kind)
        if self.stepped_back:
            resume_variables[HPK_RESUME_MEMORY] = "0"
        return resume_variables

    def fields(self) -> Dict[str, Any]:
        """Return the fields of the choice for the ledger and the report."""
        order: Optional[List[int]] = None
        if self.order:
            order = list(self.order)
        return {
            "from": self.source,
            "step": self.step,
            "order": order,
            "kind": self.kind,
            "proof": self.proof,
            "rejected": reasons(self.rejected),
        }

    def sentence(self) -> str:
        """Return a sentence that says what is resumed, and what was passed over."""
        passed = "".join(f"; passed over {name}: {reason}" for name, reason in self.rejected)
        if self.source == NONE:
            return "starts at step 0: no checkpoint was ever committed"
        source = self.source
        if self.proof:
            source += f" ({self.kind}, {PROVEN[self.proof]})"
        return f"resumes from {source}, step {self.step}{passed}"


def told_to_ranks(source: str, step: int, kind: str) -> Dict[str, str]:
    """Return the variables that tell the ranks where they resume."""
    return {HPK_RESUME_FROM: source, HPK_RESUME_STEP: str(step), HPK_RESUME_KIND: kind}


def reasons(pairs: Any) -> List[Dict[str, str]]:
    """Return (attempt, why) pairs as JSON objects."""
    return [{"attempt": str(name), "why": str(reason)} for name, reason in pairs]


def newest_complete_kit_else_foreign(root: str, passed_over: Mapping[str, str], prove: Any = None) -> Any:
    """Return the newest checkpoint of ours whose files are all there, else the newest whole one of another framework.

    Bytes of ours are not read: the ranks prove them while they restore, go back together where they must, and say what
    they took (slurm/verdict.py). Another framework's trainer would not go back, so `prove` (foreign/newest.py) proves
    its checkpoint as far as the format allows. Raises NoCheckpoint, NoValidCheckpoint, OSError.
    """
    from hyperpod_kit.checkpoint.repository import selection

    return _newest_kit_else_foreign(selection.newest_complete, root, passed_over, prove)


def newest_verified_kit_else_foreign(root: str, passed_over: Mapping[str, str], prove: Any = None) -> Any:
    """Return the newest checkpoint of ours of which every byte is proved, else the newest whole one of another
    framework. The proof takes as long as reading the checkpoint. Raises NoCheckpoint, NoValidCheckpoint, OSError."""
    from hyperpod_kit.checkpoint.repository import selection

    return _newest_kit_else_foreign(selection.newest_valid, root, passed_over, prove)


def chooser_reusing_foreign_proofs(root: str, state: str) -> Chooser:
    """Return `newest_complete_kit_else_foreign` for a decision that is made outside of `job run`.

    Bytes of another framework's checkpoint that were proven before are not read again.
    """
    from hyperpod_kit.job.foreign import proven, proving

    return partial(
        newest_complete_kit_else_foreign,
        prove=partial(proving.read_unproven_files_and_weakest_proof, root, proven=proven.ProvenFiles(root, state)),
    )


def _newest_kit_else_foreign(kit_chooser: Chooser, root: str, passed_over: Mapping[str, str], prove: Any) -> Any:
    # Imported late: most of this package works on nodes that hold no checkpoint.
    from hyperpod_kit.job.foreign import newest

    try:
        return kit_chooser(root, passed_over)
    except NoCheckpoint:
        foreign_checkpoint = newest.newest_provable_foreign_checkpoint(root, passed_over, prove)
        if foreign_checkpoint is None:
            raise
        return foreign_checkpoint


def _is_newer(attempt: str, order: Tuple[int, int]) -> bool:
    """Return whether an attempt of ours is newer, also one that lies in memory alone."""
    from hyperpod_kit.checkpoint.repository.format import layout

    name = layout.parse_checkpoint_id(attempt)
    return name is not None and (name.epoch, name.seq) > order


def choose_waiting_for_unread_newer(
    root: str,
    state: str,
    passed_over: Mapping[str, str],
    unreadable: Mapping[str, str],
    wait_seconds: float,
    chooser: Chooser = newest_complete_kit_else_foreign,
) -> Choice:
    """Choose as `choose_requiring_root_present` does, for a decision that is made outside of `job run`.

    While a newer checkpoint cannot be read, the choice is made again, for `wait_seconds` at most. Raises as `choose`.
    """
    end = time.monotonic() + wait_seconds
    while True:
        choice = choose_requiring_root_present(root, state, chooser, passed_over, unreadable)
        if not choice.unread or time.monotonic() >= end:
            return choice
        time.sleep(min(1.0, wait_seconds))


def choose_requiring_root_present(
    root: str, state: str, chooser: Chooser, passed_over: Mapping[str, str], unreadable: Mapping[str, str]
) -> Choice:
    """Choose as `choose` does, and make sure that the root is there before and after: an absent one reads like an empty
    one.

    Raises as `choose`, NoValidCheckpoint also when checkpoints of another framework that jobs have resumed from are all
    gone, and OSError when the root, or the directory of its records, `state`, is not there.
    """
    state_place.require(root, state)
    choice = choose(root, chooser, passed_over, unreadable)
    if choice.source == NONE:
        _refuse_lost_foreign(root)
    state_place.require(root, state)
    return choice


def _refuse_lost_foreign(root: str) -> None:
    """Raise NoValidCheckpoint if checkpoints of another framework that jobs have resumed from are all gone.

    For checkpoints of ours, `selection` has read all records before. Raises CheckpointError, OSError, too.
    """
    lost = commit_records.lost_commits_assuming_no_manifests(
        commit_records.collect_commit_evidence(open_store(root)), kit_checkpoints=False
    )
    if lost:
        raise NoValidCheckpoint(
            root, commit_records.summarize_lost_commits(lost), hint=commit_records.repair_hint(root)
        )


def choose(
    root: str,
    chooser: Chooser = newest_complete_kit_else_foreign,
    passed_over: Optional[Mapping[str, str]] = None,
    unreadable: Optional[Mapping[str, str]] = None,
) -> Choice:
    """Return the newest checkpoint that the chooser accepts, or the choice to start at step 0 when there is none.

    `passed_over` (attempt -> why): checkpoints that are taken only when there is no other.
    `unreadable`: likewise, but what memory holds of newer ones may be used.
    Raises NoValidCheckpoint, other CheckpointErrors, OSError.
    """
    poisoned = passed_over or {}
    passed = {**(unreadable or {}), **poisoned}
    try:
        checkpoint = chooser(root, passed)
    except NoCheckpoint:
        # What ends every run may be a capture that was never committed.
        return Choice(NONE, 0, stepped_back=bool(poisoned))
    order = (int(checkpoint.epoch), int(checkpoint.seq))
    has_rejected_poisoned = any(name in poisoned for name, _ in checkpoint.rejected)
    return Choice(
        checkpoint.attempt,
        int(checkpoint.step),
        order,
        tuple((name, reason) for name, reason in checkpoint.rejected),
        stepped_back=has_rejected_poisoned or any(_is_newer(name, order) for name in poisoned),
        kind=getattr(checkpoint, "kind", KIT_KIND),
        proof=getattr(checkpoint, "proof", ""),
        unread=tuple(getattr(checkpoint, "unread", ())),
    )
