"""Texts that do not look as their field says (config/fields/fields.py)."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.fields.fields import pattern_at
from hyperpod_kit.config.mounts.reference import COMMON
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.schema_recorder import MOUNTS, KeyPath, KeyRead
from hyperpod_kit.config.settings.settings import Settings


def check_text_patterns_outside_mounts(settings: Settings) -> Iterator[Finding]:
    """Report every text that does not match the pattern of its field; `check_mount_text_patterns` does
    those of mounts."""
    left_out: set[KeyPath] = set()
    for read in settings.reads:
        inside = read.key_path[:-1]
        if read.kind == "object" and read.value is None and (read.optional or inside in left_out):
            left_out.add(read.key_path)
        if inside in left_out or inside[:-1] == MOUNTS:
            continue
        pattern = pattern_at(read.field_path)
        if pattern is not None:
            for path, text in _texts_with_configuration_paths(read):
                if not pattern.fits(text):
                    yield Finding(pattern.code, path, pattern.message.replace("{value}", text), pattern.remedy(text))


def check_mount_text_patterns(settings: Settings) -> Iterator[Finding]:
    """Report texts of mounts that do not match their pattern: of the long form, of a short form, and of
    the homes."""
    for mount, at in settings.sourced_mounts:
        form = FORMS[mount.kind]
        for key, field in {**COMMON, **form.fields}.items():
            text, pattern = getattr(mount, key, None), field.pattern
            if pattern is not None and isinstance(text, str) and not pattern.fits(text):
                yield Finding(
                    pattern.code,
                    form.configuration_path_of_key(at, key),
                    pattern.message.replace("{value}", text),
                    pattern.remedy(text),
                )


def _texts_with_configuration_paths(read: KeyRead) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of one read key; for a missing one the placeholder, so that it is reported as
    one thing."""
    if read.kind == "texts":
        yield from ((f"{read.path}[{index}]", text) for index, text in enumerate(read.value))
    elif read.kind == "text" and not (read.optional and read.value is None):
        yield read.path, str(read.value or "")
