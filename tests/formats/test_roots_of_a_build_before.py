"""Roots that a build before 0.1.0 wrote, unchanged, shown by every command that reports: right, or said to be unknown.

`before/jobs`: a crash, a restart and a requeue of `job run`, which kept no rows of time then; `before/checkpoints`: two
checkpoints of a Manager.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Callable, List

import pytest

from hyperpod_kit.cli.main import run_command_line

BEFORE = Path(__file__).parent / "before"
OLDER, NEWER = "seq-000001.step-0000000003.e1-41fea4", "seq-000002.step-0000000006.e1-41fea4"

Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shown:
    """What a command prints; it must end with `code`."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def call(*words: object, code: int = 0) -> str:
        assert run_command_line([str(word) for word in words]) == code
        return capsys.readouterr().out

    return call


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE / "jobs", tmp_path / "jobs"))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE / "checkpoints", tmp_path / "checkpoints"))


def test_attempts_are_as_they_were_and_their_time_is_unknown(shown: Shown, jobs: Path) -> None:
    status = json.loads(shown("job", "status", "7", "--root", jobs, "--json"))
    assert [(one["name"], one["kind"], one["reached"]) for one in status["attempts"]] == [
        ("7.0.0", "crash", 8),
        ("7.0.1", "done", 12),
        ("7.1.0", "done", 14),
    ]
    assert status["totals"]["lost"] == 5 and status["saves"]["durable"]["step"] == 10
    (time,) = status["time"]
    assert time["goodput"] is None and time["unknown"] > 0.99 and time["now"] is None and time["unit"] == "node"
    text = shown("job", "status", "--root", jobs, "--price", "2")
    assert "goodput is unknown" in text and "GPU-hours" not in text and "$" not in text
    assert "its time in the queue is unknown" in text and "its number of GPUs is unknown" in text


def test_what_gpus_nobody_counted_is_no_number(shown: Shown, jobs: Path) -> None:
    words = ["job", "goodput", "--root", jobs, "--since", "2020-01-01"]
    head, row = shown(*words, "--price", "2").splitlines()
    assert head.split()[1:4] == ["GOODPUT", "GPU-HOURS", "DOLLARS"]
    assert row.replace("(not known)", "").split()[:3] == ["?", "?", "?"]
    (group,) = json.loads(shown(*words, "--json"))["groups"].values()
    assert (group["goodput"], group["unit"]) == (None, "node")


def test_checkpoints_are_listed_proven_and_compared(shown: Shown, checkpoints: Path) -> None:
    listed: List[Any] = json.loads(shown("checkpoint", "ls", checkpoints, "--json"))["attempts"]
    assert [(one["attempt"], one["step"], one["committed"], one["problem"]) for one in listed] == [
        (NEWER, 6, True, None),
        (OLDER, 3, True, None),
    ]
    no_jobs = shown("job", "status", "--root", checkpoints)
    assert "has no records of `job run`" in no_jobs and "newest durable: step 6, " in no_jobs
    assert "version hyperpod_kit 0.1.0" in shown("checkpoint", "show", checkpoints)
    assert shown("checkpoint", "verify", checkpoints).split() == [NEWER, "valid", OLDER, "valid"]
    differs = shown("checkpoint", "diff", checkpoints / OLDER, checkpoints / NEWER, code=1)
    assert "8 changed, 0 of another shape or type, 0 added, 0 removed, 1 equal" in differs
    assert "9 equal" in shown("checkpoint", "diff", checkpoints, checkpoints)
    assert "nothing to repair" in shown("checkpoint", "repair", checkpoints, "--dry-run")
    kept = shown("checkpoint", "prune", checkpoints, "--latest", "1", "--dry-run")
    assert "would delete" in kept and (checkpoints / OLDER).is_dir()


def test_what_they_take_is_counted_and_growth_is_not_known_yet(shown: Shown, checkpoints: Path, tmp_path: Path) -> None:
    words = ["storage", "usage", checkpoints, "--state", tmp_path / "state"]
    assert "growth is unknown yet" in shown(*words)
    (place,) = json.loads(shown(*words, "--fresh", "--json"))["roots"]
    sizes = [path.lstat().st_size for path in (checkpoints, *checkpoints.rglob("*"))]
    assert (place["total"]["entries"], place["total"]["size"]) == (len(sizes), sum(sizes))
    assert place["growth"] is None and place["full_in_days"] is None
