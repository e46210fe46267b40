"""`hyperpod-kit explain`: codes of findings and exit codes, as people type them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hyperpod_kit.cli.table import cli
from hyperpod_kit.cli.views import finding_texts
from hyperpod_kit.errors import Absent


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_code_in_small_letters_is_explained_with_its_remedy() -> None:
    output = run("hpk-u020")
    assert output.startswith("HPK-U020 (Users, homes and access points)")
    assert "no access point yet" in output
    assert "remedy: hyperpod-kit users apply" in output


@pytest.mark.parametrize("code", sorted(finding_texts.every_code()))
def test_every_code_has_an_explanation(code: str) -> None:
    explanation = json.loads(run(code, "--json"))
    assert explanation["format"] == "hpk-explain/1"
    assert explanation["code"] == code
    assert explanation["topic"]
    assert all(message["message"] for message in explanation["messages"])


def test_an_exit_code_is_explained() -> None:
    assert "the job gave up and is held" in run("86")


@pytest.mark.parametrize(
    ("code", "hint"), [("HPK-U02", "similar codes: HPK-U0"), ("7", "its exit codes are 0"), ("what", "a code looks")]
)
def test_an_unknown_code_is_absent_and_similar_ones_are_named(code: str, hint: str) -> None:
    with pytest.raises(Absent) as raised:
        CliRunner().invoke(cli, ["explain", code], catch_exceptions=False, standalone_mode=False)
    assert hint in (raised.value.hint or "")
