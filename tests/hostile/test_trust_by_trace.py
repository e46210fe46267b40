"""The table of the threat model against what strace sees: as whom each command opens and changes what others own,
what it starts, and whether it leaves the machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import List

import pytest

from docs_build.trust import OF_A_CHECKOUT, trust_of
from tests.hostile.acts.commands import ATTACKED
from tests.hostile.acts.ground import ground
from tests.hostile.acts.trace import CHANGES, NAMES, Access, Trace, traced
from tests.hostile.users import ATTACKER, VICTIM
from tests.support.rows import full

CHECKOUT = Path(__file__).parents[2]
TRACED = [
    "checkpoint ls",
    *full("checkpoint show", "checkpoint verify", "checkpoint repair", "checkpoint prune", "checkpoint pin"),
    *full("checkpoint get", "checkpoint diff", "checkpoint export", "checkpoint import", "job goodput", "job status"),
    *full("data index", "data stage", "data merge", "storage usage", "storage preload", "storage tier"),
    *full("storage quota show", "storage audit import", "render"),
]


def of_others(trace: Trace, mine: Path, acts_as_owner: bool, runner: int) -> List[Access]:
    """What the row does not say: the owner alone reads and changes there, or who calls it reads."""
    accesses = [access for access in trace.below(mine) if access.kind != NAMES]
    if acts_as_owner and not runner:
        return [access for access in accesses if access.uid != ATTACKER]
    return [access for access in accesses if access.uid != runner or access.kind == CHANGES]


@pytest.mark.needs("root", "strace")
@pytest.mark.parametrize("name", TRACED)
def test_a_command_does_what_its_row_says(name: str) -> None:
    entry, row = ATTACKED[name], trust_of(tuple(name.split()))
    assert row is not None
    runner = VICTIM if entry.by == "user" else 0
    with ground() as here:
        mine, place = here.fresh(ATTACKER, 0), here.runner_place(runner, 0)
        places = {"mine": mine, "out": place / "out", "own": place, "fsx": here.fsx, "archive": here.archive}
        words = [word.format(**places, attempt=here.names[0]) for word in entry.words.split()]
        environment = {**os.environ, "HOME": str(place), "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
        trace = traced([sys.executable, "-m", "hyperpod_kit.cli.main", *words], runner, environment)
        assert "Traceback" not in trace.printed and trace.below(mine), trace.printed
        beyond = of_others(trace, mine, "the owner" in row.acts, runner)
        assert not beyond, "\n".join(f"uid {access.uid}: {access.call}" for access in beyond)
    programs = {re.sub(r"^python[0-9.]*$", "python", program) for program in trace.programs}
    assert programs <= row.programs | OF_A_CHECKOUT, f"docs_build/trust.py says that it starts {row.starts}"
    assert not trace.networks, "every place is on this machine"
