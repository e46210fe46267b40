"""Takes secrets out of texts and values that leave the admin's machine. Pure.

A word too many is taken out rather than one too few: who reads the archive can ask for what is missing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from typing import Any, Callable, Match

from hyperpod_kit.config.reading import credentials
from hyperpod_kit.untrusted.parse import parse_json_object
from hyperpod_kit.untrusted.text import replace_unprintable_in_lines

LONGEST_LINE = 4096
"""Characters of a line. A longer one is left out: half of a secret could not be recognised."""

_SENSITIVE = (
    r"(?:passw(?:or)?d|passphrase|secret|token|credential|authorization|cookie|signature|bearer|bind_?pw"
    r"|(?:[a-z0-9]+[_-]key)|apikey)"
)
_SENSITIVE_KEY = re.compile(rf"(?i){_SENSITIVE}")
_PUBLIC_KEYS = re.compile(r"(?i)^(?:[a-z_]*next_?token|secrets|.*_?file_?key|stage_token)$")

_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----(?:.{0,16384}?-----END [A-Z0-9 ]{0,40}-----|.{0,16384})",
    re.DOTALL,
)
_URL_USER = re.compile(r"(?i)([a-z][a-z0-9+.-]{1,20}://)[^\s/'\"<>]{1,500}@")
_AUTHORIZATION = re.compile(r"(?i)((?:proxy-)?authorization[\"']?\s{0,4}[:=]\s{0,4}|\b(?:bearer|basic)\s+)[^\r\n\"']+")
_ASSIGNED = re.compile(
    rf"(?i)(\b[a-z0-9_.-]{{0,64}}{_SENSITIVE}[a-z0-9_.-]{{0,64}}(?:\\{{0,16}}[\"'])?\s{{0,4}}[:=]>?\s{{0,4}})"
    r"(\\{0,16}\"[^\"]*\"?|\\{0,16}'[^']*'?|[^\s,;&}\]]+)"
)
_OPTION = re.compile(rf"(?i)(--?[a-z0-9-]{{0,64}}{_SENSITIVE}[a-z0-9-]{{0,64}}\s+)([^\s-]\S*)")
_PROSE = re.compile(r"(?i)(\b(?:password|passphrase)\s+(?:is\s+|was\s+)?)([^\s:=,;.]\S*)")
_MIXED = r"(?=[A-Za-z0-9/+=_-]*[a-z])(?=[A-Za-z0-9/+=_-]*[A-Z])(?=[A-Za-z0-9/+=_-]*[0-9])"
_RANDOM_WORDS = (
    re.compile(rf"(?<![A-Za-z0-9/+=]){_MIXED}[A-Za-z0-9/+]{{40}}(?![A-Za-z0-9/+=])"),
    re.compile(rf"(?<![A-Za-z0-9+=_-]){_MIXED}[A-Za-z0-9+=_-]{{41,}}"),
    re.compile(rf"(?<![A-Za-z0-9/+=]){_MIXED}[A-Za-z0-9/+]{{60,}}={{0,2}}"),
)
"""A secret access key of AWS; a token of one word; a line of base64."""
_SHAPES = tuple(
    (what, re.compile(f"(?:{shape})[A-Za-z0-9_.+/=-]*"))
    for what, shape in credentials.SHAPES.items()
    if what not in ("a password", "a password in a URL", "a private key")
)
_SUSPICIOUS = re.compile(
    rf"(?i){_SENSITIVE}|basic|_key|-key|://|arn:aws|dkr\.ecr|[a-z0-9/+=_-]{{40}}|AKIA|ASIA|ABIA|ACCA|gh[pousr]_|glpat-"
    r"|hf_|xox|eyJ"
)
"""Something of every pattern: most lines of a log have none of it, and need no more looks."""
_ACCOUNT = re.compile(r"(?:arn:aws[a-z-]*:[a-z0-9-]*:[a-z0-9-]*:([0-9]{12}):|\b([0-9]{12})\.dkr\.ecr\.)")


class Scrubber:
    """Takes secrets out, and counts what it took; the numbers of AWS accounts become the same word everywhere.

    Attributes:
        removed: What was taken out, by kind -> how often.
    """

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()
        self._accounts: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return the text, printable, without what looks like a secret."""
        text = replace_unprintable_in_lines(text)
        text = _PEM.sub(self._put("a private key"), text)
        return "\n".join(map(self._line, text.split("\n")))

    def value(self, value: Any, key: str = "") -> Any:
        """Return a value as JSON has them, with every text in it scrubbed, and none behind a name of a secret."""
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(inner, str(name)) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        if value and _SENSITIVE_KEY.search(key) and not _PUBLIC_KEYS.match(key):
            return self._mark("a value by its name")
        return self.text(value)

    def _line(self, line: str) -> str:
        if len(line) <= LONGEST_LINE and not _SUSPICIOUS.search(line):
            return self._without_accounts(line)
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.dumps(self.value(parse_json_object(line)))
        if len(line) > LONGEST_LINE:
            return self._mark(f"a line of more than {LONGEST_LINE} characters")
        line = _AUTHORIZATION.sub(self._put_behind("an authorization"), line)
        line = _URL_USER.sub(self._put_behind("a password in a URL", "@"), line)
        for what, shape in _SHAPES:
            line = shape.sub(self._put(what), line)
        line = _ASSIGNED.sub(self._put_behind("a value by its name"), line)
        line = _OPTION.sub(self._put_behind("a value by its name"), line)
        line = _PROSE.sub(self._put_behind("a value by its name"), line)
        for random_word in _RANDOM_WORDS:
            line = random_word.sub(self._put("a long random word"), line)
        return self._without_accounts(line)

    def _without_accounts(self, line: str) -> str:
        for match in _ACCOUNT.finditer(line):
            account = match[1] or match[2]
            self._accounts.setdefault(account, f"account-{len(self._accounts) + 1}")
        for account, word in self._accounts.items():
            if account in line:
                line = line.replace(account, word)
                self.removed["an AWS account number"] += 1
        return line

    def _mark(self, what: str) -> str:
        self.removed[what] += 1
        return f"[removed: {what}]"

    def _put(self, what: str) -> Callable[[Match[str]], str]:
        return lambda match: self._mark(what)

    def _put_behind(self, what: str, end: str = "") -> Callable[[Match[str]], str]:
        """Return a replacement that keeps the first group, and does not mark what is marked already."""

        def replacement(match: Match[str]) -> str:
            if "[removed:" in match[0]:
                return match[0]
            return f"{match[1]}{self._mark(what)}{end}"

        return replacement
