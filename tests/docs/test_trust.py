"""The threat model says of every command as whom it acts, and says what the code does."""

from __future__ import annotations

from docs_build import trust
from docs_build.commands import Command


def test_every_command_has_a_row_and_the_page_has_the_table(commands: list[Command]) -> None:
    missing = [one.name for one in trust.leaves(commands) if trust.trust_of(one.words) is None]
    assert not missing, f"docs_build/trust.py has no row for {missing}"
    names = {one.name for one in trust.leaves(commands)}
    assert set(trust.COMMANDS) | trust.CLOUDS <= names, "there are no such commands any more"
    text = trust.PAGE.read_text()
    assert trust.page(text, commands) == text, "python -m docs_build.trust"
