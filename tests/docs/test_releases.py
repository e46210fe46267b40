"""No text of ours speaks of a release that does not exist.

The next release is `RELEASE`; nothing was released before it. What came before are builds, which have a commit and no
number. Numbers of other programs are allowed where the table says so.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import pytest

from hyperpod_kit.version import RELEASE

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve()

NUMBER = r"v?0\.[0-9]+(?:\.[0-9]+)?(?![0-9.]*[0-9])"
PATTERNS = (
    # "before 0.3", "since 0.2.0", "release 0.6", "bundles up to 0.4"
    re.compile(rf"\b(?:before|since|until|releases?|(?:releases?|bundles?|versions?) up to) (?P<number>{NUMBER})"),
    # "(0.5.0)", as dates of decisions
    re.compile(r"\((?P<number>0\.[0-9]+\.[0-9]+)\)"),
    # "older releases", "the first release", "releases before this one"
    re.compile(r"\b(?:old|older|earlier|former|previous|first) releases?\b"),
    re.compile(r"\breleases? (?:from )?before (?:it|this|these|0\.)"),
)

ALLOWED: Dict[str, Tuple[str, ...]] = {
    # Nodes of a cluster may have bundles of two releases at the same time, from the second release on.
    "hyperpod_kit/job/step/lifeline.py": (
        "runs an older release of hyperpod-kit than `job run`",
        "`job run` is of an older release than",
    ),
    "tests/unit/job/test_lifeline.py": ("runs an older release", "`job run` is of an older release than"),
    # What is promised for the time after this release.
    "SECURITY.md": ("the release before it",),
    "CHANGELOG.md": ("0.1.0 (not yet released) The first release.",),
    # Other programs.
    "hyperpod_kit/checkpoint/adapters/deepspeed.py": ("before 0.18",),
    "hyperpod_kit/checkpoint/repository/format/digest.py": ("since 0.8.0",),
    "docs/how-to/megatron.md": ("before 0.14",),
    "tests/unit/node/device_cases.json": ("older release",),
}
"""File -> what stands there rightly: each a part of the text around a match."""

SKIPPED = ("tests/hostile/fuzz/cases/", "lab/programs/results/")


def files() -> Iterator[Tuple[str, str]]:
    """(path, text) of every file of the repository that is text."""
    argv = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=60).stdout.decode()
    for name in sorted(filter(None, listing.split("\0"))):
        path = ROOT / name
        if name.startswith(SKIPPED) or path == HERE or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield name, text


def texts() -> Iterator[Tuple[str, str]]:
    """The same in one line: a sentence may go on behind the signs of a comment on the next line."""
    for name, text in files():
        yield name, re.sub(r"\s*\n[\s#*/|>]*", " ", text)


def mentions(text: str) -> Iterator[str]:
    """Each place where the text speaks of a release that does not exist, with some words around it."""
    for pattern in PATTERNS:
        for match in pattern.finditer(text):
            if match.groupdict().get("number", "").lstrip("v") != RELEASE:
                yield text[max(0, match.start() - 40) : match.end() + 40]


def unallowed(name: str, text: str) -> List[str]:
    return [words for words in mentions(text) if not any(part in words for part in ALLOWED.get(name, ()))]


@pytest.mark.needs("git-checkout")
def test_no_text_speaks_of_a_release_that_does_not_exist() -> None:
    found = {name: problems for name, text in texts() if (problems := unallowed(name, text))}
    assert found == {}


@pytest.mark.needs("git-checkout")
def test_what_is_allowed_is_still_there() -> None:
    known = dict(texts())
    stale = [
        f"{name}: {part}"
        for name, parts in ALLOWED.items()
        for part in parts
        if not any(part in words for words in mentions(known.get(name, "")))
    ]
    assert stale == []


@pytest.mark.parametrize(
    "text",
    [
        "as releases before 0.3 hand it in",
        "Until release 0.3 it stood here",
        "Hooks of bundles up to 0.4;",
        "a release before 0.1.0",
        "**A save blocks by default (0.2.0).**",
        "files of the first release",
        "agents and flushes of older releases",
        "the key was named otherwise before 0.6.0",
    ],
)
def test_such_a_text_would_be_seen(text: str) -> None:
    assert list(mentions(text))


@pytest.mark.parametrize(
    "text",
    ["builds before 0.1.0", "up to 0.43 (stall)", "0.2 to 0.6 s", "10.0.2.0/24", "the release 0.1.0", "(0.1.0)"],
)
def test_such_a_text_is_right(text: str) -> None:
    assert not list(mentions(text))
