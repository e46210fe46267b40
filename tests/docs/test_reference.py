"""What the generated reference is made from is complete, so that a missing word is found without building the site."""

from __future__ import annotations

import dataclasses
import re

import pytest

from docs_build import pages, words
from docs_build.command_pages import place_of
from docs_build.commands import Command
from hyperpod_kit.cli.views import finding_texts
from hyperpod_kit.cli.views.finding_texts import FindingText
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.job.lint.doctor import DoctorFinding
from hyperpod_kit.job.lint.lint_finding import LintFinding

FILLED_IN = re.compile("‹[^›]*›")
WORD = re.compile("[a-z]{2}")
PASSED_ON = {"HPK-O008", "HPK-O010", "HPK-O027", "HPK-U031", "HPK-U036", "J028", "S020"}
"""Codes whose messages are made elsewhere, so that the source of the finding has no words of them."""


def test_every_code_of_a_finding_is_on_the_page() -> None:
    listed = {text.code for text in finding_texts.all_texts()}
    missing = finding_texts.every_code() - listed
    assert not missing, f"finding_texts.py does not see what is said with {sorted(missing)}"
    without_words = {
        text.code for text in finding_texts.all_texts() if not WORD.search(FILLED_IN.sub("", text.message))
    }
    assert without_words == PASSED_ON


@pytest.mark.parametrize("kind", [Finding, LintFinding, DoctorFinding])
def test_the_arguments_of_a_finding_are_known_in_their_order(kind: type) -> None:
    assert finding_texts.FIELDS[kind.__name__] == tuple(field.name for field in dataclasses.fields(kind))


@pytest.mark.parametrize("text", finding_texts.texts_of("J009"))
def test_the_severity_message_and_hint_of_a_code_are_those_of_its_source(text: FindingText) -> None:
    assert text.severity == "warning"
    assert text.message.startswith("a limit of ‹limit› min ends the job before a node is replaced")
    assert text.hint


def test_every_state_and_every_variable_has_a_sentence() -> None:
    assert words.states() and words.variables()


def test_a_name_without_a_sentence_is_an_error_with_the_name() -> None:
    with pytest.raises(KeyError, match=r"no sentence for .'new'.; not in the code any more: .'old'."):
        words._in_order(["new", "kept"], {"old": "", "kept": ""})


def test_every_command_is_in_the_reference_once(commands: list[Command]) -> None:
    made = pages.all_pages()
    for command in commands:
        anchor = f"{{ #{'-'.join(command.words)} }}"
        assert made[place_of(command.section)].count(anchor) == 1, command.name
    assert set(made) == set(pages.places())
