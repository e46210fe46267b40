"""Whether the Slurm that runs goes by our lines, from what each version really prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings
from hyperpod_kit.slurm.running_config import is_in_force, parse_show_config

PRINTED = Path(__file__).parents[1] / "job/printed"
OURS = parse_slurm_conf_settings((Path(__file__).parents[3] / "slurm/hooks.conf").read_text())
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_line_of_ours_is_found_in_force_where_it_is(version: str) -> None:
    config = parse_show_config((PRINTED / f"slurm-{version}").read_text())
    config.setdefault("unkillablesteptimeout", "180 sec")
    wrong = {key: config.get(key) for key, value in OURS.items() if is_in_force(config, key, value) is not True}
    # These were printed with the hooks of 0.4, whose block had no line of this.
    wrong.pop("unkillablesteptimeout", None)
    assert wrong == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_line_of_ours_is_missed_where_it_is_not(version: str) -> None:
    config = parse_show_config((PRINTED / f"slurm-{version}-none").read_text())
    missed = {key for key, value in OURS.items() if is_in_force(config, key, value) is False}
    assert missed == set(OURS) - {"requeueexithold"}, "which these clusters had from their own slurm.conf"


def test_a_list_may_have_other_words_in_any_order() -> None:
    config = {
        "prologflags": "Contain,Alloc",
        "schedulerparameters": "a=1,nohold_on_prolog_fail",
        "requeueexithold": "9,86",
    }
    assert is_in_force(config, "PrologFlags", "Alloc") and is_in_force(config, "RequeueExitHold", "86")
    assert is_in_force(config, "SchedulerParameters", "nohold_on_prolog_fail") is True
    assert is_in_force(config, "SchedulerParameters", "nohold") is False
    assert is_in_force(config, "PrologEpilogTimeout", "60") is None, "printed in a form that this version cannot read"
    apart = {"prologtimeout": "60 sec", "epilogtimeout": "90 sec"}
    assert is_in_force(apart, "PrologEpilogTimeout", "60") is False
    assert is_in_force({**apart, "epilogtimeout": "60 sec"}, "PrologEpilogTimeout", "60") is True
