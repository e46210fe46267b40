"""--help of every command, whoever adds it: examples that can be typed, and a word for every option."""

from __future__ import annotations

import re

import pytest

from docs_build.command_lines import Checker
from docs_build.commands import Command
from docs_build.programs import Lines

HOW = """At the end of the command's docstring (of a table: `examples=`):

    \\b
    Examples:
      hyperpod-kit {} …
"""


def test_every_command_has_examples(commands: list[Command]) -> None:
    without = [command.name for command in commands if not command.children and not command.examples]
    assert not without, f"no examples in the help of {', '.join(without)}. {HOW.format(without[0])}"


def test_every_example_can_be_typed_and_is_of_its_command(commands: list[Command], checker: Checker) -> None:
    lines = Lines(checker)
    wrong = []
    for command in commands:
        for example in command.examples:
            wrong += [f"{command.name}: {problem}" for _, problem in lines.problems(example)]
            if f"hyperpod-kit {command.name}" not in example:
                wrong.append(f"{command.name}: {example}: an example of another command")
    assert not wrong, "\n".join(wrong)


def test_every_option_says_what_it_is_for(commands: list[Command]) -> None:
    silent = [
        f"{command.name} {written}"
        for command in commands
        for written, text in command.options
        if written.startswith("-") and not re.sub(r"\[[^]]*\]", "", text).strip()
    ]
    assert not silent, f"without help: {'; '.join(silent)}"


def test_help_shows_the_examples_where_a_person_reads_them(
    commands: list[Command], capsys: pytest.CaptureFixture[str]
) -> None:
    from hyperpod_kit.cli.main import run_command_line

    clicked = [one for one in commands if one.words[0] != "node" and one.examples]
    assert len(clicked) > 20
    for command in clicked:
        assert run_command_line([*command.words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "\n  Examples:\n    " in shown, f"{command.name}: is `\\b` missing before Examples:?"


def test_a_line_that_cannot_be_typed_is_found(checker: Checker) -> None:
    """The checker itself: each of these is wrong in another way."""
    for line, word in (
        ("hyperpod-kit validat", "Did you mean"),
        ("hyperpod-kit validate --nope", "--nope"),
        ("hyperpod-kit create-cluster --timeout soon", "soon"),
        ("hyperpod-kit users", "group"),
        ("hyperpod-kit users aply", "aply"),
        ("hyperpod-kit replace-node", "Missing argument"),
        ("hyperpod-kit job run -- python train.py", "--checkpoint-root"),
        ("hyperpod-kit job lint", "FILE"),
        ("hyperpod-kit checkpoint", "group"),
        ("hyperpod-kit checkpoint list /fsx/run1", "list"),
        ("hyperpod-kit checkpoint export /fsx/run1 --to zip --out x", "zip"),
        ("hyperpod-kit node mount", "mount"),
        ("kubectl get nodes", "not a command line"),
    ):
        assert word in (checker.problem(line) or "no problem found"), line
    for line in (
        "hyperpod-kit --version",
        "hyperpod-kit validate --help",
        "hyperpod-kit job run --checkpoint-root /fsx/$USER/run1 -- python train.py --lr 1",
        "hyperpod-kit job run --checkpoint-root X --srun-args --mpi=none -- python train.py",
        "hyperpod-kit job submit --auto-resume=1 --nodes 8 train.sbatch",
        "hyperpod-kit rehearse up && eval true",
        "hyperpod-kit create-cluster --dry-run --json > request.json",
        "hyperpod-kit list-cluster-nodes | head  # the first",
    ):
        assert checker.problem(line) is None, line
