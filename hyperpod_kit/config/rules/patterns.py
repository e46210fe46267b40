"""Texts that do not look as their field says (config/fields.py)."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.fields import pattern_of
from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.mounts.reference import COMMON
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.schema_recorder import MOUNTS, KeyPath, KeyRead
from hyperpod_kit.config.settings import Settings


def check_texts(settings: Settings) -> Iterator[Finding]:
    """Every text that was read matches the pattern of its field, where it has one. Those of mounts are judged below."""
    left_out: set[KeyPath] = set()
    for read in settings.reads:
        inside = read.key_path[:-1]
        if read.kind == "object" and read.value is None and (read.optional or inside in left_out):
            left_out.add(read.key_path)
        if inside in left_out or inside[:-1] == MOUNTS:
            continue
        pattern = pattern_of(read.field)
        if pattern is not None:
            for path, text in _texts(read):
                if not pattern.fits(text):
                    yield Finding(pattern.code, path, pattern.message.replace("{value}", text), pattern.remedy(text))


def check_mount_texts(settings: Settings) -> Iterator[Finding]:
    """So do those of the mounts: of the long form, of a short form, and of the homes."""
    for mount, at in settings.sourced_mounts:
        form = FORMS[mount.kind]
        for key, field in {**COMMON, **form.fields}.items():
            text, pattern = getattr(mount, key, None), field.pattern
            if pattern is not None and isinstance(text, str) and not pattern.fits(text):
                yield Finding(
                    pattern.code,
                    form.path_of_key(at, key),
                    pattern.message.replace("{value}", text),
                    pattern.remedy(text),
                )


def _texts(read: KeyRead) -> Iterator[tuple[str, str]]:
    """(where it is written, the text); of what is missing the placeholder, so that it is reported as one thing."""
    if read.kind == "texts":
        yield from ((f"{read.path}[{index}]", text) for index, text in enumerate(read.value))
    elif read.kind == "text" and not (read.optional and read.value is None):
        yield read.path, str(read.value or "")
