"""However a command ends, a person gets a sentence and a program an exit code; nobody gets a stack trace unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Outcome

    Hk = Callable[..., Outcome]

ROOT = Path(__file__).parents[3]
PROGRAM = f"'{sys.executable}' -m hyperpod_kit.cli.main"


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash with the program in $hk, in a process group that has no terminal."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def much(tmp_path: Path) -> Path:
    """A configuration with more findings than a pipe holds."""
    values = json.loads((ROOT / "provisioning_parameters.example.json").read_text())
    path = tmp_path / "c.json"
    values["hyperpod_kit"]["cluster"]["vpc"]["subnet_ids"] = ["nowhere"] * 1000
    path.write_text(json.dumps(values))
    return path


def test_a_reader_that_leaves_early_causes_no_noise(much: Path) -> None:
    done = shell(f"{PROGRAM} validate {much} | head -1", much.parent)
    assert (done.returncode, done.stderr) == (141, "") and "HPK-K00" in done.stdout


def test_a_full_disk_behind_stdout_is_said(much: Path) -> None:
    done = shell(f"{PROGRAM} validate {much} --json > /dev/full", much.parent)
    assert (done.returncode, done.stderr) == (3, "error: No space left on device\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("-m hyperpod_kit.cli.main checkpoint ls /nowhere", 3),
        ("-m hyperpod_kit.cli.main nonsense", 2),
        (f"-I -S {ROOT}/hyperpod_kit/job/__main__.py run --checkpoint-root /nowhere --", 2),
        (f"-I -S {ROOT}/hyperpod_kit/job/__main__.py status --root /nowhere", 3),
    ],
)
def test_an_exit_code_does_not_hang_on_what_can_be_said(tmp_path: Path, words: str, code: int) -> None:
    """A job's log may be on a mount that is lost: without more, Python exits with 120."""
    done = shell(f"{sys.executable} {words} 2> /dev/full", tmp_path)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("hyperpod_kit/job/cli.py", "job/cli.py"),
        ("rehearsal/hyperpod_rehearsal/boot.py", "hyperpod_rehearsal/boot.py"),
    ],
)
def test_a_defect_is_one_sentence_with_its_place(
    file: str, place: str, monkeypatch: pytest.MonkeyPatch, hk: Hk
) -> None:
    module = types.ModuleType("hyperpod_kit.job.cli")
    exec(compile("def main(argv):\n    return 1 // 0\n", str(ROOT / file), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "hyperpod_kit.job.cli", module)
    shown = hk("job")
    assert shown.code == 3 and "Traceback" not in shown.err
    first, second = shown.err.splitlines()
    assert first.startswith("error: a defect of hyperpod-kit: ZeroDivisionError: ") and first.endswith(f"({place}:2)")
    assert second.startswith("hint: repeat the command as hyperpod-kit --debug")
    traced = hk("--debug", "job")
    assert traced.code == 3 and "Traceback" in traced.err and "1 // 0" not in first


def test_what_the_system_refuses_names_the_file(monkeypatch: pytest.MonkeyPatch, hk: Hk, tmp_path: Path) -> None:
    def refuse(argv: list[str]) -> int:
        (tmp_path / "no" / "such").read_text()
        return 0

    module = types.ModuleType("hyperpod_kit.job.cli")
    module.main = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hyperpod_kit.job.cli", module)
    shown = hk("job")
    assert (shown.code, shown.err) == (3, f"error: No such file or directory: {tmp_path / 'no' / 'such'}\n")


def test_a_connection_that_breaks_is_not_taken_for_a_reader_that_left(monkeypatch: pytest.MonkeyPatch, hk: Hk) -> None:
    def cut(argv: list[str]) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    module = types.ModuleType("hyperpod_kit.job.cli")
    module.main = cut  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hyperpod_kit.job.cli", module)
    shown = hk("job")
    assert (shown.code, shown.err) == (3, "error: the other side closed the connection\n")
