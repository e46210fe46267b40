from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.command_line.program import parse_group
from hyperpod_kit.errors import Absent, JobError, RunIsOwned, Unreachable, UsageError
from hyperpod_kit.job import cli
from hyperpod_kit.job.program.command_table import JOB
from tests.unit.job.toy_trainer import commit_checkpoint

MAIN = Path(cli.__file__).with_name("__main__.py")


def test_arguments_of_srun_may_begin_with_a_dash() -> None:
    words = ["run", "--srun-args", "--mpi=none --label", "--checkpoint-root", "/c"]
    _, args = parse_group(JOB, cli._join_srun_args(words), "hyperpod-kit job")
    assert args.srun_args == ["--mpi=none --label"] and args.checkpoint_root == "/c"


def test_a_run_needs_a_command() -> None:
    with pytest.raises(UsageError, match="no command"):
        cli.main(["run", "--checkpoint-root", "/c"])
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--", "train"])
    assert caught.value.code == 2


def test_a_checkpoint_that_the_user_names_is_never_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPK_RESUME_FROM", "seq-000001.step-0000000001.e1-abcd")
    monkeypatch.delenv("HPK_ATTEMPT", raising=False)
    with pytest.raises(UsageError, match=r"HPK_RESUME_FROM=seq-000001.* is set") as caught:
        cli.main(["run", "--checkpoint-root", "/c", "--", "true"])
    assert "--from" in str(caught.value.hint)
    # With an attempt beside it, a job that submits the next one has handed on what it was told itself.
    monkeypatch.setenv("HPK_ATTEMPT", "7.0.0")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(JobError, match="this is not a Slurm job"):
        cli.main(["run", "--checkpoint-root", "/c", "--", "true"])


def test_going_back_waits_for_no_job_that_uses_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = commit_checkpoint(str(tmp_path), 1, 1, 40)
    left = commit_checkpoint(str(tmp_path), 1, 2, 50)
    assert cli.main(["rewind", str(tmp_path), name]) == 0
    assert name in capsys.readouterr().out and selection.newest_complete(str(tmp_path)).checkpoint_id == name
    (tmp_path / ".hpk").mkdir()
    (tmp_path / ".hpk" / "owner-000001.json").write_text('{"job": "9", "t": 1.0}')
    monkeypatch.setattr("hyperpod_kit.job.run.ownership._job_state_ended_or_unheard", lambda runner, job: "RUNNING")
    with pytest.raises(RunIsOwned, match="is used by job 9, which is RUNNING") as caught:
        cli.main(["rewind", str(tmp_path), left])
    assert "scancel 9" in str(caught.value.hint)
    assert selection.newest_complete(str(tmp_path)).checkpoint_id == name


def test_by_the_path_of_its_file_isolated_from_the_user(tmp_path: Path) -> None:
    """As ranks are started: no site packages, no working directory, no PYTHONPATH, and none of our names in the way."""
    (tmp_path / "json.py").write_text("raise SystemExit('the user has a json.py')")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(MAIN), "exec", "--", "/bin/sh", "-c", "exit 4"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        timeout=20,
    )
    assert done.returncode == 4


def test_errors_have_a_hint_and_an_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(MAIN), "run", "--checkpoint-root", "/c", "--", "true"],
        env={},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error: this is not a Slurm job") and "hint: " in done.stderr


def test_a_root_that_is_not_there_is_no_job_without_attempts(tmp_path: Path) -> None:
    for words in (["--root", str(tmp_path / "nope")], ["7", "--root", str(tmp_path / "nope")]):
        with pytest.raises(Absent, match=r"no such directory: .*nope") as caught:
            cli.main(["status", *words])
        assert caught.value.exit_code == 3 and caught.value.hint
    assert cli.main(["status", "--root", str(tmp_path)]) == 0, "nobody has run a job there yet"


def test_a_limit_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="--stall is 'soon'") as caught:
        cli.main(["run", "--checkpoint-root", "/c", "--stall", "soon", "--", "true"])
    assert caught.value.exit_code == 2


def test_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == []
    with pytest.raises(Absent, match="no attempt of job 9"):
        cli.main(["status", "9", "--root", str(tmp_path)])
    with pytest.raises(UsageError, match="no job and no root"):
        cli.main(["status"])
    (tmp_path / ".hpk").mkdir()
    (tmp_path / ".hpk" / "attempts.jsonl").mkdir()
    with pytest.raises(Unreachable):
        cli.main(["status", "--root", str(tmp_path)])
