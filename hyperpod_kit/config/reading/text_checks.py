"""Every piece of text in the file, judged before anybody reads it: no control characters, no novels, no secrets."""

from __future__ import annotations

import unicodedata
from typing import Any, Iterator, Mapping

from hyperpod_kit.config.reading import credentials
from hyperpod_kit.config.settings.findings import Finding

SECRET = "HPK-C006"
LONGEST = 2048
"""Characters: as long as the longest ARN."""


def find_secrets_and_unfit_texts(values: Mapping[str, Any], path: str = "") -> Iterator[Finding]:
    """Report what is wrong with any text below `values`, whose keys lie at `path`."""
    for key, value in values.items():
        if path:
            child_path = f"{path}.{key}"
        else:
            child_path = str(key)
        if _has_control_or_bidi_characters(str(key)):
            yield Finding("HPK-C007", child_path, "the key has control characters", "Write it again by hand")
        yield from _find_value_problems(str(key), value, child_path)


def _find_value_problems(key: str, value: Any, path: str) -> Iterator[Finding]:
    if isinstance(value, str):
        what = credentials.describe_secret_value(key, value)
        if what:
            yield Finding(
                SECRET,
                path,
                f"this looks like {what}, and a bundle is not a place for it",
                "Store it in Secrets Manager or Parameter Store and name its ARN under hyperpod_kit.secrets",
            )
        elif _has_control_or_bidi_characters(value):
            yield Finding("HPK-C007", path, "the text has control characters", "Write it on one line of plain text")
        elif len(value) > LONGEST:
            yield Finding("HPK-C008", path, f"the text has {len(value)} characters", f"Use {LONGEST} at most")
    elif isinstance(value, Mapping):
        yield from find_secrets_and_unfit_texts(value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_value_problems(key, item, f"{path}[{index}]")


REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters after which a line is not shown in the order in which it is read (Unicode's Bidi_Control)."""


def _has_control_or_bidi_characters(text: str) -> bool:
    """Whether there are line breaks, other control characters, or halves of a surrogate pair, which no file holds."""
    return not text.isprintable() and any(
        char in REORDERING or unicodedata.category(char) in ("Cc", "Cs") for char in text
    )
