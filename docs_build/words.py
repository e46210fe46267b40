"""What the code names in one word, in a sentence each. A name without a sentence ends the build with the name.

The lists of names come from the code (model/states.py, checkpoint/saves/handle.py, job/decide/outcome_kind.py), so that
nothing new stays unexplained and nothing that is gone stays explained. Environment variables have theirs in
hyperpod_kit/environment.py.
"""

from __future__ import annotations

import inspect
import re
from typing import Iterable, Mapping

from hyperpod_kit import environment
from hyperpod_kit.checkpoint.saves import handle
from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.model import states as mount_states

STATES_INTRODUCTION = (
    "What a mount, a save and an attempt of a job can be. What is done about each: "
    "[health of the mounts](../health.md), [checkpoints](../checkpoints.md), "
    "[jobs that come back](../auto-resume.md)."
)

_MOUNTS = {
    "ok": "it answers, and it is the mount that was asked for",
    "absent": "nothing is mounted at the path",
    "wrong_target": "something else is mounted there",
    "stale": "it is listed, and its daemon or its handle is gone",
    "hung": "it does not answer within the deadline",
    "readonly": "read-only, against the configuration",
    "full": "no blocks or no inodes are left",
    "slow": "it serves, and takes more than half of the deadline",
    "unknown": "it cannot be told",
}
_SAVES = {
    "copying": "the copy into memory runs beside training",
    "captured": "this rank's copy is whole",
    "sealed": "every rank's copy is whole, and every byte of it has its digest; it survives the trainer",
    "local": "every rank's copy is on its node's own disk too",
    "durable": "committed on shared storage",
    "skipped": "not begun: every slot was in use",
    "dropped": "another rank does not have this save, or a newer one took its place",
    "failed": "storage refused it; `handle.reason` says how",
}
VARIABLES_INTRODUCTION = "An option on the command line counts more than a variable."


def states() -> dict[str, dict[str, str]]:
    """Heading -> state -> sentence. Raises KeyError."""
    return {
        "Mounts": _in_order(map(str, mount_states.STATES), _MOUNTS),
        "Saves": _in_order(map(str, handle.SaveState), _SAVES),
        "Attempts of a job": {kind.value: kind.meaning for kind in OutcomeKind},
    }


def variables() -> dict[str, dict[str, str]]:
    """Heading -> variable -> sentence, as environment.py writes them. Raises KeyError for one without a sentence."""
    lines = inspect.getsource(environment).splitlines()
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for number, line in enumerate(lines):
        if line.startswith("# "):
            heading = line[2:]
        elif line.startswith("HPK_"):
            name = line.split(" ")[0]
            sentence = re.fullmatch('"""(.+)"""', lines[number + 1]) if number + 1 < len(lines) else None
            if sentence is None:
                raise KeyError(f"hyperpod_kit/environment.py: no sentence for {name}")
            found.setdefault(heading, {})[name] = sentence.group(1)
    found.pop(heading, None)
    return found


def _in_order(names: Iterable[str], sentences: Mapping[str, str]) -> dict[str, str]:
    wanted = list(names)
    new, gone = sorted(set(wanted) - set(sentences)), sorted(set(sentences) - set(wanted))
    if new or gone:
        raise KeyError(f"docs_build/words.py: no sentence for {new or '-'}; not in the code any more: {gone or '-'}")
    return {name: sentences[name] for name in wanted}
