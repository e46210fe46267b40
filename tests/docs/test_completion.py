"""Completion in the shells themselves: bash, zsh and fish load our lines and complete what a person types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from docs_build.blocks import ROOT
from tests.support.wait import Deadline

CASES = (
    ("hyperpod-kit describe-c", "describe-cluster"),
    ("hyperpod-kit users ap", "apply"),
    ("hyperpod-kit init --lifecycle-mode on_c", "on_create"),
    ("hyperpod-kit checkpoint exp", "export"),
    ("hyperpod-kit job run --checkpoint-r", "--checkpoint-root"),
    ("hyperpod-kit upload clus", "clusters.json"),
)
"""What is typed before the tab key -> the word that it becomes."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the program in bin/ and one file to complete."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "hyperpod-kit"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m hyperpod_kit.cli.main \"$@\"\n")
    program.chmod(0o755)
    (tmp_path / "clusters.json").write_text("{}")
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SHELL", "ZDOTDIR", "TERM")}
    return {
        **kept,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
    }


def shell(home: Path, *argv: str) -> str:
    done = subprocess.run(argv, cwd=home, env=environment(home), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash(home: Path) -> None:
    lines = ["source <(hyperpod-kit completion bash)", "complete -p hyperpod-kit | grep -q _hyperpod_kit_completion"]
    for typed, _ in CASES:
        words = typed.split(" ")
        # A file is left to readline: the function answers with nothing and the option `default`.
        lines += [
            f"COMPREPLY=(); COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}; compopt() {{ COMPREPLY=(FILE); }}",
            '_hyperpod_kit_completion hyperpod-kit; echo "${COMPREPLY[*]}"',
        ]
    answers = shell(home, "bash", "--norc", "-ec", "\n".join(lines)).splitlines()
    assert len(answers) == len(CASES)
    for (typed, wanted), answer in zip(CASES, answers):
        assert answer == ("FILE" if wanted == "clusters.json" else wanted), typed


@pytest.mark.full
@pytest.mark.needs("fish")
def test_fish(home: Path) -> None:
    lines = ["hyperpod-kit completion fish | source"]
    lines += [f"echo (complete -C '{typed}')" for typed, _ in CASES]
    answers = shell(home, "fish", "--no-config", "-c", "\n".join(lines)).splitlines()
    assert [answer.split("\t")[0] for answer in answers] == [wanted for _, wanted in CASES]
    assert "Show the status, groups and failures." in answers[0], "descriptions are whole, commas and all"


@pytest.mark.needs("zsh")
def test_zsh(home: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(home))
    try:
        os.write(terminal, b"autoload -Uz compinit; compinit -u -D\n")
        os.write(terminal, b"source <(hyperpod-kit completion zsh); print LOAD''ED\n")
        until(terminal, "LOADED")
        for typed, wanted in CASES:
            os.write(terminal, f"{typed}\t".encode())
            shown = until(terminal, wanted)
            assert wanted in shown, typed
            os.write(terminal, b"\x15\n")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def until(terminal: int, wanted: str) -> str:
    """What the terminal shows until it shows `wanted`."""
    shown = ""
    deadline = Deadline(60)
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        assert ready or not deadline.has_passed(), f"{wanted!r} was not shown: {shown!r}"
        shown += "" if not ready else os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_which_shell_is_asked_for_when_nobody_says(home: Path) -> None:
    done = subprocess.run(
        ["hyperpod-kit", "completion"], env=environment(home), capture_output=True, text=True, timeout=60, cwd=home
    )
    assert done.returncode == 2
    assert done.stderr == "error: specify a shell: $SHELL is not set\nhint: hyperpod-kit completion bash|zsh|fish\n"
