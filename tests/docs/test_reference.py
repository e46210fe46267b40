"""What the generated reference is made from is complete, so that a missing word is found without building the site."""

from __future__ import annotations

import pytest

from docs_build import findings, pages, words
from docs_build.command_pages import place_of
from docs_build.commands import Command


def test_every_code_of_a_finding_is_on_the_page() -> None:
    listed = {entry.code for entry in findings.entries()}
    missing = findings.every_code() - listed
    assert not missing, f"docs_build/findings.py does not see what is said with {sorted(missing)}"
    silent = [entry.code for entry in findings.entries() if not entry.message]
    assert not silent, f"no message is seen for {silent}"


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
