"""What a rehearsal says of itself is what it has."""

from __future__ import annotations

import re
from pathlib import Path

from hyperpod_rehearsal.cli.output import print_fidelity_table_and_implemented_calls
from hyperpod_rehearsal.fidelity import implemented_calls

DOCUMENT = Path(__file__).parents[2] / "docs/design/rehearsal.md"


def test_the_implemented_calls_are_documented_and_printed(capsys):
    listed = DOCUMENT.read_text().partition("## Implemented calls")[2].partition("\n## ")[0]
    print_fidelity_table_and_implemented_calls()
    printed = " ".join(capsys.readouterr().out.split())
    for service, calls in implemented_calls():
        match = re.search(rf"- \*\*{service}\*\*: (.*?)\.\n", listed, re.S)
        assert match is not None and match[1].replace("\n ", "").split(", ") == list(calls)
        assert f"calls of {service}: {', '.join(calls)}" in printed
