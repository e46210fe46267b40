"""Every fenced block of every document is run, parsed, read or compiled; what cannot be checked is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs_build.blocks import LANGUAGES, MARKERS, ROOT, Block, blocks_of, documents, inline_commands
from docs_build.command_lines import Checker
from docs_build.programs import Lines
from tests.docs.pasted import over, read
from tests.docs.python_blocks import check_imports

BLOCKS = [block for document in documents() for block in blocks_of(document)]


def of(language: str, marker: str = "") -> list[Any]:
    return [
        pytest.param(block, id=block.place) for block in BLOCKS if block.language == language and block.marker == marker
    ]


def test_every_block_has_a_language_and_a_marker_that_exists() -> None:
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block.place}: write one of {', '.join(LANGUAGES)} behind the fence"
        known = MARKERS.get(block.language, ())
        optional = () if block.language == "bash" else ("",)
        assert block.marker in (*optional, *known), (
            f"{block.place}: `{block.marker}` is no marker of {block.language}: {known}"
        )
        assert block.text.strip(), f"{block.place} is empty"


def test_a_block_that_is_not_run_says_why_and_which_test_has_it_instead() -> None:
    parsed = [block for block in BLOCKS if block.marker == "parsed"]
    for block in parsed:
        assert len(block.reason) >= len("installs"), f"{block.place}: <!-- parsed: WHY -->"
        gone = [name for name in re.findall(r"[\w/]*tests/[\w/.]+\w", block.reason) if not (ROOT / name).exists()]
        assert not gone, f"{block.place}: there is no {gone}"
    run = [block for block in BLOCKS if block.language == "bash" and block.marker.startswith("runs: ")]
    assert len(run) > len(parsed)


def test_every_command_of_a_block_can_be_typed(checker: Checker) -> None:
    lines = Lines(checker)
    wrong = [
        f"{block.place} +{number + 1}: {problem}"
        for block in BLOCKS
        if block.language == "bash" and block.marker != "job script"
        for number, problem in lines.problems(block.text)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_command_in_a_sentence_exists(checker: Checker) -> None:
    wrong = [
        f"{document.relative_to(ROOT)}:{number}: {problem}"
        for document in documents()
        for number, text in inline_commands(document)
        if (problem := checker.path_problem(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_command_hides_in_a_text_block() -> None:
    hidden = [
        f"{block.place}: {line}"
        for block in BLOCKS
        if block.language == "text"
        for line in block.text.splitlines()
        if line.split(" ")[0] in ("hyperpod-kit", "make", "pip")
    ]
    assert not hidden, f"these belong into bash blocks: {hidden}"


@pytest.mark.parametrize("block", of("bash", "job script"))
def test_a_job_script_has_nothing_that_keeps_a_job_from_coming_back(block: Block, tmp_path: Path) -> None:
    from hyperpod_kit.job.lint import script, script_lint

    text = block.text if block.text.startswith("#!") else f"#!/bin/bash\n#SBATCH --auto-resume=1\n{block.text}"
    found = script_lint.lint(script.parse(text))
    assert not found, [finding.render(block.place) for finding in found]


@pytest.mark.parametrize("block", [*of("json"), *of("yaml")])
def test_data_can_be_read(block: Block) -> None:
    assert read(block) is not None


@pytest.mark.parametrize("block", [*of("json", "configuration"), *of("yaml", "configuration")])
def test_a_piece_of_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    from hyperpod_kit.config.load import check

    example = json.loads((ROOT / "provisioning_parameters.example.json").read_text())
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(over(example, read(block))))
    found = [finding for finding in check(path).findings if finding.severity == "error"]
    assert not found, [finding.render() for finding in found]


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles_and_what_it_imports_is_there(block: Block) -> None:
    check_imports(block)
    names = re.findall(r"\b(manager|state|handle)\.([a-z_]+)\(", block.text)
    from hyperpod_kit.checkpoint import Handle, Manager, State

    classes = {"manager": Manager, "state": State, "handle": Handle}
    for name, method in names:
        assert hasattr(classes[name], method), f"{block.place}: {classes[name].__name__} has no {method}"
