"""Texts that do not look as their field says (config/fields.py)."""

from __future__ import annotations

from typing import Any, Iterator

from hyperpod_kit.config.fields import pattern_of
from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.schema_recorder import MOUNTS, KeyPath, KeyRead
from hyperpod_kit.config.settings import Settings


def match(settings: Settings) -> Iterator[Finding]:
    """Every text that was read matches the pattern of its field, where it has one."""
    kinds: dict[Any, str] = {}
    left_out: set[KeyPath] = set()
    for read in settings.reads:
        inside, key = read.key_path[:-1], read.key_path[-1]
        if read.kind == "object" and read.value is None and (read.optional or inside in left_out):
            left_out.add(read.key_path)
        if inside[:-1] == MOUNTS and key == "kind":
            kinds[inside] = str(read.value)
        if inside in left_out:
            continue
        pattern = pattern_of(read.field, kinds.get(inside, ""))
        if pattern is not None:
            for path, text in _texts(read):
                if not pattern.fits(text):
                    yield Finding(pattern.code, path, pattern.why.replace("{value}", text), pattern.hint)


def _texts(read: KeyRead) -> Iterator[tuple[str, str]]:
    """(where it is written, the text); of what is missing the placeholder, so that it is reported as one thing."""
    if read.kind == "texts":
        yield from ((f"{read.path}[{index}]", text) for index, text in enumerate(read.value))
    elif read.kind == "text" and not (read.optional and read.value is None):
        yield read.path, str(read.value or "")
