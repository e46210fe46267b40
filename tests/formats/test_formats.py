"""What is written keeps its form as long as its number, and every number that was ever written is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Set

import pytest

from tests.formats.table import BY_TESTS, FORMATS, ROOT, WRITTEN, Format

NUMBERED = re.compile(r'b?"(hpk-[a-z-]+/[0-9]+|HPK[A-Z]+[0-9]+|hpkpart[0-9]+)(?:\\n)?"')
CALIBRATION = "hpk-storage-calibration 1"


def shape(data: bytes) -> Any:
    """The names and types of a JSON document, or of each line of several; other bytes as they are."""
    text = data.rstrip(b" \n")
    try:
        return form_of(json.loads(text))
    except ValueError:
        pass
    try:
        return [form_of(json.loads(line)) for line in text.split(b"\n")]
    except ValueError:
        return data


def form_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: form_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [form_of(item) for item in value]
    return type(value).__name__


def in_source() -> Set[str]:
    texts = (path.read_text() for path in sorted((ROOT / "hyperpod_kit").rglob("*.py")))
    return {match.group(1) for text in texts for match in NUMBERED.finditer(text)}


def test_every_number_in_the_source_has_a_file_of_its_format() -> None:
    assert in_source() - {form.name for form in FORMATS} - BY_TESTS.keys() == set()


def test_every_row_is_of_a_format_that_is_there() -> None:
    numbered = {form.name for form in FORMATS if not form.name.endswith("(1)")} - {CALIBRATION}
    assert numbered | BY_TESTS.keys() == in_source()
    assert all((ROOT / place).is_file() for place in BY_TESTS.values())


def test_every_format_stands_on_its_page() -> None:
    page = (ROOT / "docs/design/formats.md").read_text()
    assert [name for name in (*(form.name for form in FORMATS), *BY_TESTS) if name not in page] == []


def test_every_file_has_its_row() -> None:
    assert sorted(path.name for path in WRITTEN.iterdir()) == sorted(form.file for form in FORMATS)
    assert len({form.name for form in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_was_written_is_read(form: Format) -> None:
    assert form.read((WRITTEN / form.file).read_bytes()) == form.value


@pytest.mark.parametrize("form", [form for form in FORMATS if form.write], ids=lambda form: form.name)
def test_what_is_written_has_the_form_of_its_number(form: Format) -> None:
    """Where this fails, the format has changed: it gets the next number, and a file and a row of that."""
    assert form.write is not None
    assert shape(form.write()) == shape((WRITTEN / form.file).read_bytes())


def test_another_form_would_be_seen(tmp_path: Path) -> None:
    known = b'{"format":"hpk-pin/1","reason":"kept","list":[1,"a"]}\n'
    assert shape(known) == shape(known.replace(b"kept", b"other"))
    assert shape(known) != shape(known.replace(b'"kept"', b"5"))
    assert shape(known) != shape(known.replace(b'"reason"', b'"why"'))
    assert shape(b"HPK1\0") != shape(b"HPK2\0")
