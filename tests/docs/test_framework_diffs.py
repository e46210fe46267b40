"""What a how-to page of a framework asks one to change is at most ten lines, the same as in its example, and nothing of
hyperpod-kit is left in the example without them."""

from __future__ import annotations

import ast
import re

import pytest

from docs_build.blocks import ROOT, Block, blocks_of

LINES = 10
EXAMPLES = {
    "accelerate": "accelerate_loop",
    "dcp": "dcp",
    "deepspeed": "deepspeed_zero",
    "hugging-face": "huggingface",
    "lightning": "lightning_trainer",
    "megatron": "megatron_gpt",
    "torchtitan": "torchtitan_llama",
}
MARK = "  # +"
_WAS = re.compile(r"^( *)# (.*)$")


def diffs(page: str) -> list[Block]:
    found = blocks_of(ROOT / "docs" / "how-to" / f"{page}.md")
    return [block for block in found if block.language == "text" and re.search(r"^[+-]", block.text, re.MULTILINE)]


def head(line: str) -> str:
    """What a line does: where the page and the example may differ are a call's arguments."""
    return line.removesuffix(MARK).strip().partition("(")[0]


@pytest.mark.parametrize("page", [*EXAMPLES, "third-party-scripts"])
def test_a_diff_is_at_most_ten_lines(page: str) -> None:
    found = diffs(page)
    assert found
    for block in found:
        changed = [line for line in block.text.splitlines() if line.startswith(("+", "-"))]
        assert len(changed) <= LINES, f"{block.place}: {len(changed)} lines"


@pytest.mark.parametrize(("page", "example"), EXAMPLES.items())
def test_it_is_the_diff_of_the_example_which_is_the_program_that_it_was_without_it(page: str, example: str) -> None:
    source = (ROOT / "examples" / "frameworks" / f"{example}.py").read_text()
    lines = source.splitlines()
    ours = [number for number, line in enumerate(lines) if line.endswith(MARK)]
    first = diffs(page)[0].text.splitlines()
    told = {head(line[1:]) for line in first if line.startswith("+")}
    assert {head(lines[number]) for number in ours} <= told

    before: list[str] = []
    for number, line in enumerate(lines):
        was = _WAS.match(line)
        if was and number + 1 in ours and head(was[2]) in {head(one[1:]) for one in first if one.startswith("-")}:
            before.append(was[1] + was[2])
        elif number not in ours:
            before.append(line)
    plain = ast.parse("\n".join(before))
    names = {node.module for node in ast.walk(plain) if isinstance(node, ast.ImportFrom)}
    names |= {name.name for node in ast.walk(plain) if isinstance(node, ast.Import) for name in node.names}
    assert not [name for name in names if name and name.startswith("hyperpod_kit")]
