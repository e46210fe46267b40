"""A line of JSON is what `json.loads` says of it, whoever decodes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hyperpod_kit.data import IndexedDataset
from hyperpod_kit.data.formats import json_lines
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import BadRecord
from tests.unit.data import json_fuzz

LINES = 3000
LONG = "x" * json_lines._LONG_LINE_BYTES
"""So that a line is looked at as a text first."""
BEYOND = (1 << 64, -(1 << 63) - 1, 10**30)


def in_its_way(text: str) -> Any:
    """An integer beyond 64 bits is a float, and one beyond those is refused, as orjson has it."""
    number = int(text)
    if -(1 << 63) <= number < 1 << 64:
        return number
    if abs(number) >= 1 << 1023:
        raise ValueError("infinity")
    return float(number)


def stand_in(line: bytes) -> Any:
    """Decodes as orjson does in what it does without a word."""
    return json.loads(line, parse_int=in_its_way)


def refuses_nothing(line: bytes) -> Any:
    """The same of lines that `json` does not take: nothing."""
    try:
        return stand_in(line)
    except RecursionError:
        raise ValueError("too deep") from None


@pytest.mark.needs("orjson")
def test_orjson_gives_what_json_gives():
    """`python -m tests.unit.data.json_fuzz` does a million."""
    import orjson

    ends, wrong = json_fuzz.differences(1, LINES, json_lines.decoder_with_orjson(orjson.loads))
    assert not wrong
    assert min(ends[name] for name in ("value", "JSONDecodeError", "UnicodeDecodeError", "RecursionError")) > 0


@pytest.mark.parametrize("decode", [json_lines.decode_by_json, json_lines.decoder_with_orjson(refuses_nothing)])
def test_without_it_too(decode):
    assert json_fuzz.differences(2, LINES // 3, decode)[1] == []


def test_the_fuzz_sees_what_is_not_looked_at():
    lines = json_fuzz.differences(1, LINES, refuses_nothing)[1]
    assert any(json_fuzz.outcome(json_fuzz.reference, line)[0] == "value" for line in lines)


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{{"a": {}}}',
        "[1.5, {}]",
        '{{"a": [1, {{"b": {}}}]}}',
        '["' + LONG + '", {}]',
        '["' + LONG + '", 0.0000000000000000001, {}]',
        '["' + LONG + '", [{}]]',
        "[{}," + LONG.replace("x", "7,") + "7]",
    ],
)
def test_integers_beyond_64_bits(number, text):
    for blanks in range(8):
        line = (" " * blanks + text.format(number)).encode()
        assert json_fuzz.outcome(json_lines.decoder_with_orjson(stand_in), line) == json_fuzz.outcome(json.loads, line)


@pytest.mark.parametrize("filler", ["", LONG])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_what_is_deep_is_left_to_json(filler, begin, end):
    asked = []

    def takes_all(line: bytes) -> Any:
        asked.append(line)
        found: Any = filler
        for _ in range(1000):
            found = [found] if begin == "[" else {"a": found}
        return found

    line = (begin * 1000 + f'"{filler}"' + end * 1000).encode()
    with pytest.raises(RecursionError):
        json_lines.decoder_with_orjson(takes_all)(line)
    assert asked == [line]


def test_what_is_plain_is_decoded_once(monkeypatch):
    """Nothing else than orjson looks at most lines."""
    lines = [
        b'{"id": 18446744073709551615, "text": "12345678901234567890123", "none": null, "good": true}',
        b'{"tokens": [1, 2, 3], "of": {"a": [1.5, -1e18]}}',
        json.dumps({"tokens": list(range(20_000)), "text": LONG}).encode(),
        json.dumps([{"a": 1 / 3, "b": []}] * 200).encode(),
        b'"text"',
        b"1.5",
    ]
    expected = list(map(json.loads, lines))
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda line: pytest.fail(f"{line[:80]!r} was decoded again"))
    assert list(map(json_lines.decoder_with_orjson(loads), lines)) == expected


def test_a_bad_line_is_named_as_before(tmp_path):
    lines = [b'{"n": 0}', b'{"n": 18446744073709551616, "x": NaN}', b'{"n": ', b'{"n": "\xff"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    data = IndexedDataset(build_index([str(tmp_path)]).index)
    assert data[1]["n"] == 1 << 64 and data[1]["x"] != data[1]["x"]
    for number in (2, 3):
        with pytest.raises(ValueError) as said:
            json.loads(lines[number])
        at = len(b"\n".join(lines[:number])) + 1
        with pytest.raises(BadRecord) as found:
            data.__getitems__([0, number, 1])
        expected = f"a.jsonl, at {at} (sample {number}): {type(said.value).__name__}: {said.value}"
        assert found.value.message.endswith(expected)
