"""Words and documents of others."""

from __future__ import annotations

import pytest

from hyperpod_kit.untrusted import parse, text

ESCAPES = "\x1b]0;title\x07 \x1b[2J\x9b2J \x1b]52;c;cm0gLXJm\x07"


def test_a_clean_value_is_one_printable_line() -> None:
    said = text.clean_one_line(f"  one{ESCAPES}\r\ntwo\u2028three\u202e ")
    assert said.isprintable() and said.startswith("one") and said.endswith("three")


def test_a_long_value_is_cut_and_says_so() -> None:
    assert text.clean_one_line("x" * 10_000_000, 20) == "x" * 19 + "…"


def test_lines_and_tabs_stay_where_a_text_has_them() -> None:
    assert text.replace_unprintable_in_lines("a\tb\x1b[2J\nc\r\n") == "a\tb [2J\nc \n"


@pytest.mark.parametrize("data", [b"[" * 100_000, "[" * 100_000, b"\xff\xfe", "{", b"x" * (parse.LARGEST + 1), "[1]"])
def test_what_is_no_json_object_is_a_value_error(data: object) -> None:
    with pytest.raises(ValueError):
        parse.parse_json_object(data)  # type: ignore[arg-type]


def test_a_json_object_is_read() -> None:
    assert parse.parse_json_object(b'{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("rendered", "phrase"),
    [
        (text.counted(0, "node"), "0 nodes"),
        (text.counted(1, "node"), "1 node"),
        (text.counted(3, "node"), "3 nodes"),
        (text.counted(1, "index", "indexes"), "1 index"),
        (text.counted(2, "index", "indexes"), "2 indexes"),
        (text.counted(1, "job runs", "jobs run"), "1 job runs"),
        (text.counted(2, "job runs", "jobs run"), "2 jobs run"),
        (text.counted(1234, "file", spec=","), "1,234 files"),
        (text.counted(1.2, "day", spec=".0f"), "1 day"),
        (text.counted(1.5, "hour", spec="g"), "1.5 hours"),
    ],
)
def test_a_count_has_the_right_form_of_its_noun(rendered: str, phrase: str) -> None:
    assert rendered == phrase
