"""What pytest's own report says of a part: what passed, what failed, and what was skipped for which reason."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Iterator, List, Tuple

MESSAGE = 1500
"""Characters of a failed test's message that the closing lines repeat: its first fifth, and its end with the cause."""


@dataclass(frozen=True)
class Report:
    """A JUnit report. `skipped` has (test, reason), `failures` has (test, message)."""

    passed: int
    failures: List[Tuple[str, str]]
    skipped: List[Tuple[str, str]]


def parse(text: str) -> Report:
    """Raises ParseError."""
    cases = list(ElementTree.fromstring(text).iter("testcase"))
    return Report(
        passed=sum(1 for case in cases if not list(case.iter("failure")) + list(case.iter("error")) + _skips(case)),
        failures=[(_name(case), message) for case in cases for message in _messages(case)],
        skipped=[(_name(case), _reason(skip)) for case in cases for skip in _skips(case)],
    )


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _skips(case: ElementTree.Element) -> List[ElementTree.Element]:
    """A test that is expected to fail stands as skipped in the report, too."""
    return [skip for skip in case.iter("skipped") if skip.get("type") != "pytest.xfail"]


def _reason(skip: ElementTree.Element) -> str:
    reason = re.sub(r"^Skipped: ", "", (skip.get("message") or "").strip())
    if reason != "collection skipped":
        return reason
    # Of a whole file; the text is a tuple's: (file, line, 'Skipped: reason').
    match = re.search(r"Skipped: (.*?)['\"]\)$", (skip.text or "").strip(), re.S)
    return match.group(1) if match else reason


def _messages(case: ElementTree.Element) -> Iterator[str]:
    """The lines of pytest's own account that say what was wrong."""
    for failure in (*case.iter("failure"), *case.iter("error")):
        lines = re.findall(r"^E +(.*)", failure.text or "", re.M) or (failure.get("message") or "").splitlines()
        yield shortened(" / ".join(lines))


def shortened(message: str) -> str:
    """The message, without its middle where it is longer than MESSAGE."""
    head = MESSAGE // 5
    return message if len(message) <= MESSAGE else f"{message[:head]} ... {message[head - MESSAGE :]}"
