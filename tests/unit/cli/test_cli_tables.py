"""Every table goes through one helper, and on 80 columns nothing of it is cut that identifies a row."""

from __future__ import annotations

import ast
from typing import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.command_line.tables import Cell, Column, TextTable, format_utc
from tests.support.packages import modules, relative

WIDTH = 80
OF_A_TABLE = ("TextTable", "format_rows", "Column")
HEADS_OF_DATA = {"cli/views/storage_bench_show.py": "a column for each mount has the mount's path"}


def calls_of_tables() -> Iterator[tuple[str, ast.Call]]:
    for path in modules():
        source = path.read_text()
        if "command_line.tables import" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in OF_A_TABLE:
                yield relative(path), node


def test_there_is_no_other_kind_of_table() -> None:
    assert [relative(path) for path in modules() if "rich.table" in path.read_text()] == []


def test_heads_are_in_capitals() -> None:
    wrong = []
    places = set()
    for place, call in calls_of_tables():
        places.add(place)
        first = call.args[0] if call.args else None
        heads = first.elts if isinstance(first, (ast.Tuple, ast.List)) else [first]
        texts = [head.value for head in heads if isinstance(head, ast.Constant)]
        wrong += [f"{place}:{call.lineno} {text}" for text in texts if isinstance(text, str) and text != text.upper()]
    assert wrong == []
    assert len(places) > 20


def test_heads_that_are_computed_are_in_capitals_too() -> None:
    """A head that is no constant is upper-cased where the table is made, or is data."""
    computed = set()
    for place, call in calls_of_tables():
        if ast.unparse(call.func) == "Column" and not isinstance(call.args[0], ast.Constant):
            text = ast.unparse(call.args[0])
            if not text.endswith(".upper()") and text != "head":
                computed.add(place)
    assert computed == set(HEADS_OF_DATA)


NODE = "i-0123456789abcdef0"
PATH = "/fsx/alice/a-run-with-a-name/of/many/parts"


def a_table() -> TextTable:
    table = TextTable(
        ("NODE", "STATE", Column("SIZE", is_number=True), Column("PATH", folds=True), Column("NOTE", may_miss=True)),
        "nodes",
    )
    table.add_row(NODE, Cell("Running", "green"), "12", PATH, "launched 2026-01-31 12:00:00Z")
    table.add_row(NODE[:-1] + "1", "Failure", "1,024", "/fsx", "")
    return table


def test_in_a_pipe_a_row_is_a_line_without_blanks_behind() -> None:
    title, heads, first, second = a_table().format().splitlines()
    assert title == "nodes" and heads.split() == ["NODE", "STATE", "SIZE", "PATH", "NOTE"]
    assert first.split()[:4] == [NODE, "Running", "12", PATH]
    assert second == second.rstrip() and second.endswith("/fsx")


def test_on_80_columns_a_column_is_left_out_and_named_before_another_is_broken_up() -> None:
    lines = a_table().format(WIDTH).splitlines()
    assert lines[-1] == "not shown in 80 columns: NOTE"
    assert max(map(len, lines)) <= WIDTH
    assert lines[2].startswith(f"{NODE}  Running     12  /fsx/alice/")


def test_on_a_screen_that_is_too_narrow_a_row_is_a_paragraph() -> None:
    assert a_table().format(40).splitlines()[1:5] == [NODE, "  STATE: Running", "  SIZE: 12", f"  PATH: {PATH}"]


def test_colours_take_no_room() -> None:
    plain = a_table().format(120)
    painted = a_table().format(120, lambda text, style: f"<{style}>{text}</>")
    assert "<green>Running</>" in painted and painted.replace("<green>", "").replace("</>", "") == plain


def test_wide_characters_are_counted() -> None:
    table = TextTable(("NAME", "STATE"))
    table.add_row("データ", "ok")
    table.add_row("abcdef", "ok")
    assert table.format().splitlines()[1:] == ["データ  ok", "abcdef  ok"]


def test_the_column_that_identifies_a_row_is_never_broken_up() -> None:
    for column in (Column("NODE", folds=True), Column("NODE", may_miss=True)):
        with pytest.raises(ValueError, match="identifies the row"):
            TextTable((column, "STATE"))


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
COLUMNS = st.lists(st.builds(Column, st.just("HEAD"), st.booleans(), st.booleans(), st.booleans()), max_size=6)


@given(COLUMNS, st.data())
def test_nothing_is_lost_that_is_not_named(columns: list[Column], data: st.DataObject) -> None:
    table = TextTable([Column("KEY"), *columns])
    rows = [data.draw(st.lists(WORDS, min_size=len(columns) + 1, max_size=len(columns) + 1)) for _ in range(3)]
    for row in rows:
        table.add_row(*row)
    shown = table.format(WIDTH)
    lines = shown.splitlines()
    for key, *_ in rows:
        assert any(line.lstrip().startswith(key) for line in lines), shown
    if lines[0].startswith("KEY  ") or lines[0] == "KEY":
        assert max(map(len, lines)) <= WIDTH
    needed = [number for number, column in enumerate(columns, 1) if not column.may_miss]
    letters = "".join(shown.split())
    for row in rows:
        for number in needed:
            if not columns[number - 1].folds:
                assert row[number] in shown
            assert set(row[number]) <= set(letters)


def test_moments_are_utc() -> None:
    assert format_utc(1_767_225_600.0) == "2026-01-01 00:00:00Z"


def test_no_screen_has_the_time_of_a_zone() -> None:
    """Local times of two machines cannot be compared: what is shown is UTC."""
    local = [relative(path) for path in modules() if "localtime(" in path.read_text()]
    assert [place for place in local if not place.startswith("hyperpod_rehearsal/")] == []
