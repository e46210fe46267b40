"""What the ranks found when they restored: told to `job run`, which chose without reading a byte of data.

The first rank of a program that uses `checkpoint.Manager` writes one at each restore, as
`<state>/verdicts/<attempt of the job>/restored.json` (`restored.1.json` when HyperPod has started its step again).
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_STATE
from hyperpod_kit.slurm import write_once
from hyperpod_kit.slurm.environment import step_launch_id_with_srun_port
from hyperpod_kit.untrusted.text import clean_one_line

STEM = "restored"
NONE = "none"
"""`source` of a run that begins at step 0, because nothing was ever committed."""

_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_MOST = 1 << 62


class RestoreVerdict(NamedTuple):
    """What all ranks agreed on. `source`: the attempt directory, `none`, or "" where `error` (a class of errors.py)
    says why there is none, in the words of `why`.

    `order`: its (epoch, seq); `tier`: `memory`, `local`, `storage`, joined by "+"; `rejected`: newer ones, and why.
    `launch`: which start of the ranks it was (`slurm.environment.step_launch_id_with_srun_port`).
    """

    source: str
    step: int = 0
    order: Optional[Tuple[int, int]] = None
    tier: str = ""
    rejected: Tuple[Tuple[str, str], ...] = ()
    error: str = ""
    why: str = ""
    launch: str = ""

    def to_report_fields(self) -> Dict[str, Any]:
        """Return the dictionary that the ledger and the report hold."""
        return {
            "from": self.source or None,
            "step": self.step,
            "order": list(self.order) if self.order else None,
            "tier": self.tier,
            "rejected": [{"attempt": name, "why": reason} for name, reason in self.rejected],
            **({"error": self.error, "why": self.why} if self.error else {}),
        }

    def sentence(self) -> str:
        """Return one sentence that says what the ranks restored, or why they could not."""
        passed = "".join(f"; skipped {name}: {reason}" for name, reason in self.rejected)
        if self.error:
            return f"the ranks could not restore: {self.error}: {self.why}"
        if self.source == NONE:
            return f"the ranks begin at step 0{passed}"
        return f"the ranks restored {self.source}, step {self.step}, from {self.tier}{passed}"


def verdict_directory(state_directory: str, attempt: str) -> str:
    """Return the directory of the verdicts on an attempt of a job. Raises ValueError for what is no attempt's
    name."""
    if not _ATTEMPT.fullmatch(attempt):
        raise ValueError(f"{attempt!r} is not the name of a job's attempt")
    return os.path.join(state_directory, "verdicts", attempt)


def write_verdict_if_under_job_run(env: Mapping[str, str], verdict: RestoreVerdict) -> None:
    """Write the verdict for the `job run` that the environment names, if it names one. Raises OSError."""
    state, attempt = env.get(HPK_STATE), env.get(HPK_ATTEMPT)
    if state and attempt and _ATTEMPT.fullmatch(attempt):
        kept = [{"attempt": name, "why": clean_one_line(reason, 500)} for name, reason in verdict.rejected[:50]]
        value = {
            **verdict._asdict(),
            "launch": step_launch_id_with_srun_port(env),
            "why": clean_one_line(verdict.why, 2000),
            "rejected": kept,
        }
        write_once.write_new_record(verdict_directory(state, attempt), STEM, value)


def read_last_verdict_per_launch(state_directory: str, attempt: str) -> List[RestoreVerdict]:
    """Read the verdicts on an attempt, the last of each launch, in order; what no rank writes is skipped.
    Raises OSError."""
    try:
        folder = verdict_directory(state_directory, attempt)
    except ValueError:
        return []  # the ledger that names it may be another's words
    values_by_number = {number: value for stem, number, value in write_once.read_all_records(folder) if stem == STEM}
    # A program may restore more than once in a launch: the last counts.
    of_launch: Dict[str, RestoreVerdict] = {}
    for number in sorted(values_by_number):
        verdict = _parse_verdict_or_none(values_by_number[number])
        if verdict is not None:
            of_launch.pop(verdict.launch, None)
            of_launch[verdict.launch] = verdict
    return list(of_launch.values())


def _parse_verdict_or_none(value: Mapping[str, Any]) -> Optional[RestoreVerdict]:
    """Parse a verdict; None for what no rank writes."""
    source, step, order = value.get("source"), value.get("step"), value.get("order")
    texts = [value.get(name, "") for name in ("tier", "error", "why", "launch")]
    rejected = value.get("rejected") or []
    if not (
        isinstance(source, str)
        and type(step) is int
        and 0 <= step < _MOST
        and all(isinstance(word, str) for word in texts)
        and (order is None or _is_epoch_and_seq(order))
        and isinstance(rejected, list)
        and all(isinstance(entry, dict) for entry in rejected)
    ):
        return None
    reasons = tuple(
        (clean_one_line(entry.get("attempt", ""), 200), clean_one_line(entry.get("why", ""), 500))
        for entry in rejected[:50]
    )
    tier, error, reason, launched = (clean_one_line(word, 2000) for word in texts)
    at = None
    if order:
        at = (order[0], order[1])
    return RestoreVerdict(clean_one_line(source, 200), step, at, tier, reasons, error, reason, launched)


def _is_epoch_and_seq(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int and 0 <= number < _MOST for number in value)
    )
