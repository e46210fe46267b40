"""For which reasons a test may be skipped.

A test that is skipped counts as failed, unless the machine lacks a capability that the test is marked with
(tests/support/capabilities.py). What `./setup.sh system` installs is no excuse where this is root.
"""

from __future__ import annotations

import re
from typing import List, Tuple

INSTALLED = "./setup.sh system"
"""Stands in a reason where it brings what is lacking."""
_LACK = re.compile(rf"lacks [a-z0-9.-]+(?P<source> \({re.escape(INSTALLED)}\))?: [^;]+(?:; |$)")


def is_excused(reason: str, root: bool) -> bool:
    """Whether a test may be skipped for this reason."""
    lacks = list(_LACK.finditer(reason))
    if not lacks or "".join(lack.group(0) for lack in lacks) != reason:
        return False
    return not (root and any(lack.group("source") for lack in lacks))


def judged(skipped: List[Tuple[str, str]], root: bool) -> int:
    """Print every skipped test with its reason; how many of them count as failed."""
    wrong = [not is_excused(reason, root) for _, reason in skipped]
    for (name, reason), bad in sorted(zip(skipped, wrong)):
        print(f"{'FAILED: skipped' if bad else 'skipped'}  {name}: {reason}")
    if any(wrong):
        print(f"{sum(wrong)} skipped for something that is neither hardware nor the lack of root: {INSTALLED}")
    return sum(wrong)
