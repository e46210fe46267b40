"""What ranks tell `job run` of their restore: each launch's last word, and nothing that they cannot have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.slurm import verdict
from hyperpod_kit.slurm.verdict import RestoreVerdict

TAKEN = RestoreVerdict("seq-000003.step-0000000030.e1-abcd", 30, (1, 3), "memory", (("seq-000004", "gone"),))


def told(state: Path, launch: str = "0.4000") -> dict[str, str]:
    step, port = launch.split(".")
    return {
        "HPK_STATE": str(state),
        "HPK_ATTEMPT": "7-ab.0.1",
        "SLURM_STEP_ID": step,
        "SLURM_STEP_LAUNCHER_PORT": port,
    }


def test_what_was_told_is_read_again(tmp_path: Path) -> None:
    verdict.write_verdict_if_under_job_run(told(tmp_path), TAKEN)
    [found] = verdict.read_last_verdict_per_launch(str(tmp_path), "7-ab.0.1")
    assert (found.source, found.step, found.order, found.tier) == (TAKEN.source, 30, (1, 3), "memory")
    assert found.rejected == TAKEN.rejected and found.launch == "0.4000"
    assert found.to_report_fields()["order"] == [1, 3] and "restored seq-000003" in found.sentence()


def test_the_last_word_of_each_launch_counts_in_the_order_of_launches(tmp_path: Path) -> None:
    for launch, step in (("0.4000", 5), ("0.4000", 6), ("0.4001", 17), ("0.4001", 18)):
        verdict.write_verdict_if_under_job_run(told(tmp_path, launch), RestoreVerdict(f"seq-{step}", step))
    assert [found.step for found in verdict.read_last_verdict_per_launch(str(tmp_path), "7-ab.0.1")] == [6, 18]


def test_nobody_is_told_where_no_job_run_is_above(tmp_path: Path) -> None:
    verdict.write_verdict_if_under_job_run({}, TAKEN)
    verdict.write_verdict_if_under_job_run({"HPK_STATE": str(tmp_path), "HPK_ATTEMPT": "../../etc"}, TAKEN)
    assert list(tmp_path.iterdir()) == [] and verdict.read_last_verdict_per_launch(str(tmp_path), "../../etc") == []


@pytest.mark.parametrize(
    "change",
    [
        {"source": 7},
        {"step": -1},
        {"step": True},
        {"order": [1]},
        {"order": [1, "2"]},
        {"tier": None},
        {"rejected": ["x"]},
        {"rejected": 3},
        {"error": {}},
    ],
)
def test_what_no_rank_writes_is_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    verdict.write_verdict_if_under_job_run(told(tmp_path), TAKEN)
    path = tmp_path / "verdicts" / "7-ab.0.1" / "restored.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert verdict.read_last_verdict_per_launch(str(tmp_path), "7-ab.0.1") == []


def test_a_torn_one_is_left_out(tmp_path: Path) -> None:
    verdict.write_verdict_if_under_job_run(told(tmp_path), TAKEN)
    path = tmp_path / "verdicts" / "7-ab.0.1" / "restored.json"
    path.write_text(path.read_text()[:-9])
    assert verdict.read_last_verdict_per_launch(str(tmp_path), "7-ab.0.1") == []
