"""The operators of tests/mutants: each changes one place, and what comes out is a program that does something else."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.mutants.operators import OPERATORS, mutated, sites

SOURCE = '''
LIMIT = 3

def shout(words):
    words.append("loud")

def judge(number, words=5):
    """Not a place for 1 mutant."""
    if number < LIMIT:
        return "few"
    shout(words)
    words.append(7)
    return "many"
'''


def outcome(source: str, number: int) -> Any:
    names: Dict[str, Any] = {}
    exec(compile(source, "mutant", "exec"), names)
    words: list[Any] = []
    return names["judge"](number, words), words


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_mutant_does_something_else(operator: str) -> None:
    own = [site for site in sites(SOURCE) if site.operator == operator]
    assert own
    for site in own:
        source = mutated(SOURCE, site)
        assert [outcome(source, number) for number in (2, 3, 4)] != [outcome(SOURCE, number) for number in (2, 3, 4)], (
            site
        )
        assert len(sites(source)) > 0


def test_sites_are_in_functions_and_have_the_line_that_runs() -> None:
    lines = SOURCE.splitlines()
    for site in sites(SOURCE):
        assert "LIMIT = 3" not in lines[site.line - 1] and "words=5" not in lines[site.line - 1], site
    (early,) = [site for site in sites(SOURCE) if site.operator == "early return"]
    assert lines[early.line - 1].strip() == 'return "many"'
