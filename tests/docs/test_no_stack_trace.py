"""Every command where nothing is right: no configuration, a directory in its place, no text. Words come out."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Callable

import pytest

from docs_build.commands import Command
from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.cli.terminal.program_commands import ProgramCommand

Makes = Callable[[Path], object]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: None, id="no-configuration"),
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(lambda path: path.write_bytes(b"\xff\xfe\x00{"), id="no-text"),
    ],
)
def test_no_command_ends_in_a_stack_trace(
    make: Makes,
    commands: list[Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    make(tmp_path / "provisioning_parameters.json")
    tried = [
        one.words
        for one in commands
        # A rehearsal is of this machine and not of this directory.
        if not isinstance(one.native, ProgramCommand) and not one.children and one.words[0] != "rehearse"
    ]
    assert len(tried) > 20
    for words in tried:
        code = run_command_line(list(words))
        said = capsys.readouterr().err
        assert code in (0, 1, 2, 3), f"{words}: exit code {code}"
        assert "Traceback" not in said and "a defect of" not in said, f"{words}: {said}"
        assert code == 0 or said, f"{words} ended with {code} and said nothing"
