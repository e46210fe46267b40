"""`storage plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.storage.plan import calibration, seeds

PLAN = ("storage", "plan")


def test_the_published_tables_are_printed_beside_the_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*PLAN, "--calibration", "seed"]) == 0
    shown = capsys.readouterr()
    for text in ("Optimizer (Sharded)", "63.00", "60.40", "-4.1%", "27,281,250", "0.0566%"):
        assert text in shown.out
    assert "ten times too small" in shown.err


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*PLAN, "--calibration", "seed", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert len(body["cells"]) == 14 and max(abs(one["error"]) for one in body["cells"]) < 0.07
    assert len(body["streamed"]) == 2


def test_a_calibration_of_ones_own_has_no_published_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration.save(seeds.CHECKPOINTS, tmp_path / "own.json")
    assert run_command_line([*PLAN, "--calibration", str(tmp_path / "own.json")]) == 0
    assert "27,281,250" not in capsys.readouterr().out


def test_a_plan_says_sizes_choice_price_and_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--parameters", "8.03B", "--writer", "torch-save", "--every", "4h", "--calibration", "seed"]
    assert run_command_line([*PLAN, *words]) == 0
    shown = capsys.readouterr()
    for text in (
        "a checkpoint: 89.74 GiB (model 29.91 GiB, optimizer 59.83 GiB)",
        "chosen: S3 through Mountpoint",
        "0.023 US dollars a GB-month, 2026-09",
        "manager.every_seconds: 14400",
    ):
        assert text in shown.out
    assert shown.out.count("one writer may be held back") == 1


def test_without_a_calibration_the_plan_warns_and_prints_bands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line([*PLAN, "--parameters", "70B", "--ranks", "64", "--nodes", "8"]) == 0
    shown = capsys.readouterr()
    assert "not calibrated" in shown.err and " to " in shown.out and "/dev/shm of each node" in shown.out


def test_nothing_that_can_be_taken_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--parameters", "70B", "--ranks", "64", "--nodes", "8", "--writer", "torch-save", "--every", "60s"]
    assert run_command_line([*PLAN, *words, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert body["chosen"] is None and all(one["refused"] for one in body["candidates"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "specify a model"),
        (["--parameters", "big"], "a number such as 8.03B"),
        (["--parameters", "8B", "--ranks", "7", "--nodes", "2"], "the same number on each node"),
        (["--parameters", "8B", "--data-size", "1GB"], "a size and a number of files"),
        (["--parameters", "8B", "--data-size", "1GB", "--data-files", "9", "--rows-per-second", "1"], "--data-rows"),
        (["--parameters", "8B", "--mtbf", "1h", "--ledger", "x"], "--mtbf and --ledger both set"),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line([*PLAN, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--calibration", "--prices"])
def test_a_file_that_is_not_there_is_exit_code_3(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line([*PLAN, "--parameters", "8B", option, "none.json"]) == 3
    assert "there is no none.json" in capsys.readouterr().err


def test_help_of_the_program_imports_none_of_it() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from hyperpod_kit.cli.main import run_command_line; run_command_line(['--help']); "
        "sys.exit(any(name.startswith('hyperpod_kit.storage') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
