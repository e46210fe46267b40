"""The torture in small: each of its parts for a few seconds, and that it would notice a broken engine."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Fresh, Manager, Restored, State
from hyperpod_kit.checkpoint.agent.shm import capture_age
from hyperpod_kit.errors import NoValidCheckpoint
from hyperpod_lab.torture import cli, days, failpoint_names, lies
from hyperpod_lab.torture.damage import damage, damage_case, damage_kinds, damage_special
from hyperpod_lab.torture.damage.damage_case import CaseResult
from hyperpod_lab.torture.ground import temporary_ground
from hyperpod_lab.torture.ledger import RootHistory


def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the report)."""
    code = cli.main(["--json", "--dir", str(tmp_path), *args])
    report = json.loads(capsys.readouterr().out)
    assert list(tmp_path.glob("hpk-torture-*")) == [], "nothing is left behind"
    return code, report


@pytest.mark.full
def test_every_flipped_byte_is_found(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "flips", "--flips", "40", "--seed", "5", "--budget", "60")
    counts = report["parts"]["flips"]["counts"]
    assert (code, report["ok"]) == (0, True), report
    assert counts["detected"] == 40 and counts["walked back"] and counts["refused"], counts


@pytest.mark.full
def test_no_kind_of_damage_is_restored_wrong_or_waited_for(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "damage", "--damage", "30", "--seed", "5", "--budget", "100")
    part = report["parts"]["damage"]
    assert (code, report["ok"], part["done"]) == (0, True, 30), report
    assert part["counts"]["disk: the newest"] and part["counts"]["disk: an older one"], part
    assert 0 < part["counts"]["MB at most"] < 300, part


def test_there_are_enough_kinds_of_damage_and_each_damages() -> None:
    shard = random.Random(1).randbytes(9000)
    attempts = [f"seq-00000{n}.step-000000000{n}.e1-abcd" for n in (1, 2, 3)]
    files = ["MANIFEST.json", "extra.json", "index.bin", "shard-00000.safetensors", "shard-00001.safetensors"]
    objects = {f"{attempt}/{file}": shard[n:] for n, (attempt, file) in enumerate(itertools.product(attempts, files))}
    objects |= {"RUN.json": shard[:300], "LATEST": shard[:100], "epoch-000001.json": shard[:200]}
    kinds = damage_kinds.object_damage_kinds(objects, random.Random(5))
    assert len({kind.name for kind in kinds}) > 1400 and all(kind.change is not None for kind in kinds)
    special = damage_special.file_system_damage_kinds(objects)
    assert len({kind.name for kind in special}) > 350
    unchanged = [kind.name for kind in kinds if kind.change is not None and kind.change(objects) == objects]
    assert unchanged == []


def test_the_judge_of_damage_knows_what_is_wrong() -> None:
    older = damage_kinds.DamageKind("x", damage_kinds.OLDER)
    good = CaseResult(verify=1, restored=(1, 1), rejected=["seq"])
    assert list(damage._find_violations(older, good)) == []
    for bad in (
        replace(good, restored=(1, 2)),
        replace(good, wrong=["w"]),
        replace(good, verify=0),
        replace(good, verify=-1),
        replace(good, restored=(2, 1)),
        replace(good, memory=301 << 20),
        CaseResult(verify=1, error="OSError: ELOOP", declared=False),
        CaseResult(verify=2, error="NoValidCheckpoint"),
    ):
        assert list(damage._find_violations(older, bad)), bad


@pytest.mark.full
def test_a_look_that_hangs_or_dies_is_ended_and_the_next_one_is_fresh(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(damage_case, "DEADLINE", 300.0)
    inspector = damage_case.RootInspector(1)
    try:
        assert inspector.inspect(str(tmp_path)).verify == 3  # torch is imported by now
        assert inspector._process is not None and inspector._process.pid is not None
        os.kill(inspector._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(damage_case, "DEADLINE", 5.0)
        assert "did not end" in inspector.inspect(str(tmp_path)).error and inspector._process is None
        monkeypatch.setattr(damage_case, "DEADLINE", 300.0)
        assert inspector.inspect(str(tmp_path)).verify == 1
        os.kill(inspector._process.pid, signal.SIGKILL)
        assert "it died" in inspector.inspect(str(tmp_path)).error
    finally:
        inspector.close()


@pytest.mark.full
def test_a_flipped_byte_in_shared_memory_is_never_restored(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "memory", "--flips", "500", "--seed", "5", "--budget", "60")
    assert code == 0 and report["parts"]["memory"]["done"] == 5, report


@pytest.mark.full
def test_killed_at_named_places_and_never_restored_wrong(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "kills", "--kills", "5", "--seed", "5", "--budget", "60")
    part = report["parts"]["kills"]
    assert (code, report["ok"]) == (0, True), report
    assert part["done"] >= 5, part


@pytest.mark.full
def test_failing_operations_leave_the_previous_or_the_new_checkpoint(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "faults", "--every", "120", "--seed", "5", "--budget", "100")
    counts = report["parts"]["faults"]["counts"]
    assert code == 0 and {"memory", "posix", "restricted", "s3"} <= set(counts), report
    assert counts["not committed"] >= 8, counts


@pytest.mark.full
def test_however_often_the_disk_lies_one_whole_checkpoint_is_left(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "lies", "--lies", "8", "--seed", "5", "--budget", "100")
    part = report["parts"]["lies"]
    assert code == 0 and part["done"] >= 8 and part["counts"]["saves"] > part["done"], report


def test_the_judge_of_lies_knows_what_is_wrong() -> None:
    good: list[dict[str, Any]] = [
        {"what": "restored", "attempt": "a", "wrong": []},
        {"what": "saved", "step": 4, "whole": "a", "dropped": True},
        {"what": "end"},
    ]
    assert lies._find_violations(good, "a") == []
    for bad in (
        good[:2],
        good[1:],
        [{**good[0], "wrong": ["w"]}, *good[1:]],
        [{**good[0], "attempt": "b"}, *good[1:]],
        [good[0], {**good[1], "whole": ""}, good[2]],
        [*good, {"what": "error", "kind": "NoValidCheckpoint", "why": "…"}],
    ):
        assert lies._find_violations(bad, "a"), bad


@pytest.mark.full
def test_other_numbers_of_ranks_restore_every_kind_of_tensor(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "reshard", "--seed", "5", "--budget", "100")
    assert code == 0 and report["parts"]["reshard"]["done"] == 6, report


@pytest.mark.full
def test_set_back_runs_and_two_jobs_on_one_root(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "branch,owners", "--meetings", "1", "--seed", "5", "--budget", "100")
    assert code == 0 and [part["done"] for part in report["parts"].values()] == [1, 1], report


@pytest.mark.full
def test_what_partners_hold_brings_lost_nodes_back(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "partners", "--meetings", "4", "--seed", "3", "--budget", "300")
    part = report["parts"]["partners"]
    assert code == 0 and part["done"] == 4 and part["counts"]["restored from memory"], report


@pytest.mark.full
def test_an_engine_that_does_not_refuse_is_noticed(capsys, tmp_path: Path, monkeypatch) -> None:
    """The suite itself under test: refusals become a start from scratch, walking back becomes wrong bytes."""
    honest = Manager.restore

    def careless(self: Manager, state: State):
        try:
            got = honest(self, state)
        except NoValidCheckpoint:
            return Fresh()
        if isinstance(got, Restored) and got.rejected:
            assert state.model is not None
            next(state.model.parameters()).data.view(torch.uint8)[0] ^= 1
        return got

    monkeypatch.setattr(Manager, "restore", careless)
    code, report = run(capsys, tmp_path, "--only", "flips", "--flips", "30", "--seed", "5", "--budget", "60")
    part = report["parts"]["flips"]
    assert code == 1 and part["counts"]["violations"] == part["done"] == 30, part
    assert any("changed bytes of step 10: embed" in line for line in part["violations"]), part
    assert any("started from scratch" in line for line in part["violations"]), part


def test_the_judge_of_kills_knows_what_is_wrong() -> None:
    ledger = RootHistory()
    ledger.add_events([{"what": "saving", "epoch": 1, "step": 4}, {"what": "sealed", "epoch": 1, "seq": 1}])
    good = {"what": "restored", "epoch": 1, "seq": 1, "step": 4, "wrong": []}
    assert ledger.find_violations([good], was_killed=False) == []
    for bad in (
        {**good, "wrong": ["w"]},
        {**good, "step": 5},
        {**good, "seq": 0},
        {"what": "fresh"},
        {"what": "error", "kind": "NoValidCheckpoint", "why": "…"},
    ):
        assert ledger.find_violations([bad], was_killed=True), bad


def test_the_places_are_in_the_trainer_and_in_the_agent() -> None:
    found = failpoint_names.find_failpoints()
    assert len(found) >= 8 and {where.startswith(("agent/", "repository/")) for where in found.values()} == {
        True,
        False,
    }


@pytest.mark.parametrize("args", [["--only", "nonsense"], ["--budget", "soon"], ["--unknown"]])
def test_a_command_that_makes_no_sense(args: list[str], capsys) -> None:
    assert cli.main(args) == 2
    capsys.readouterr()


@pytest.mark.full
def test_runs_older_than_a_day_lose_nothing_in_silence(capsys, tmp_path: Path) -> None:
    code, report = run(capsys, tmp_path, "--only", "days", "--meetings", "6", "--seed", "5", "--budget", "200")
    part = report["parts"]["days"]
    assert (code, report["ok"], part["done"]) == (0, True, 6), report
    assert part["counts"]["captures"] > 6 and part["counts"]["given up aloud"], part


@pytest.mark.full
def test_an_engine_that_takes_the_age_of_the_run_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one did that asked the files for their times."""
    monkeypatch.setattr(capture_age, "seconds_since_sealing", lambda page, moment: 48 * 3600.0)
    with temporary_ground(str(tmp_path)) as here:
        outcome = days.play_one_day_scene(here.make_subground("one"), 5, days.DayScene(days.DayEvent.STORAGE_AWAY))
    assert outcome.lost and "lost [" in outcome.wrong, outcome
