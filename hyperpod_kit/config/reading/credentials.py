"""What looks like a secret in a text or beside a key.

Secrets reach nodes by ARN only, so none may stand in a configuration or a bundle. Nothing here repeats what it found.
"""

from __future__ import annotations

import re
from typing import Iterator, Optional

SHAPES = {
    "an AWS access key id": r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----",
    "a GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})",
    "a GitLab token": r"glpat-[A-Za-z0-9_-]{20}",
    "a Hugging Face token": r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30}",
    "a Slack token": r"xox[abeprs]-[A-Za-z0-9-]{10}",
    "a JSON web token": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10}",
    "a password in a URL": r"[a-z][a-z0-9+.-]{1,20}://[^/\s:@'\"]{0,64}:[^/\s:@'\"$<{]+@",
    # NAME: "literal" and NAME = 'literal' in any language; NAME=literal at the start of a shell line.
    "a password": r"(?i:passw(?:or)?d|passphrase|secret_?access_?key|secret_?key|api_?key|auth_?token|client_?secret"
    r"|bind_?pw|private_?key)[\"']?\s{0,4}[:=]\s{0,4}(?:\"[^\"\s$<{][^\"\s]*\"|'[^'\s$<{][^'\s]*')"
    r"|(?m:^\s{0,8}(?:export )?[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_KEY)[A-Z0-9_]*=[^\s\"'$<{(]+)",
}
"""What it is -> how it is written. AWS's prefixes: IAM user guide, "Unique identifiers"."""

_ANY = re.compile("|".join(f"(?P<s{number}>{shape})" for number, shape in enumerate(SHAPES.values())))
_WHAT = tuple(SHAPES)

_SENSITIVE = re.compile(r"(?i)passw(or)?d|passphrase|secret|token|credential|(api|private|access)_?key|bind_?pw")
ARN = re.compile(r"arn:aws[a-z-]*:[a-z0-9-]+:[^:\s]*:[^:\s]*:\S+")


def find_secrets_in_text(text: str) -> Iterator[tuple[int, str]]:
    """(1-based line, what it looks like) of everything in a text that looks like a secret."""
    for match in _ANY.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, _WHAT[int(str(match.lastgroup)[1:])]


def describe_secret_value(key: str, value: str) -> Optional[str]:
    """Say what the value of a key looks like, when that is a secret: its shape, or a sensitive name without an ARN."""
    for _, what in find_secrets_in_text(value):
        return what
    if value and _SENSITIVE.search(key) and not ARN.fullmatch(value):
        return "a secret that is written out"
    return None
