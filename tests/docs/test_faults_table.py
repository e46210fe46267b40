"""The page of faults: a run writes its own column, and leaves what other runs have measured."""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import BEGIN, COLUMNS, END, NOT_RUN, PAGE, FaultRow, Table


def page_with(tmp_path: Path, *rows: str) -> Path:
    """A page of four profiles, as it was before there were more."""
    page = tmp_path / "faults.md"
    head = [f"| {' | '.join((*COLUMNS[:6], COLUMNS[-1]))} |", "| --- " * 7 + "|"]
    page.write_text(f"before\n{BEGIN}\n" + "\n".join([*head, *rows]) + f"\n{END}\nafter\n")
    return page


def rows_of(page: Path) -> list[FaultRow]:
    lines = page.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [FaultRow.read([cell.strip() for cell in line.split("|")[1:-1]]) for line in lines[2:]]


def test_a_run_writes_its_own_column(tmp_path: Path) -> None:
    page = page_with(tmp_path, "| a rank dies | retried | 1.2 | 3.4 | not run | not run | `test_a` |")
    table = Table()
    table.row("hyperpod", "test_a", "a rank dies", "retried", 0.7, "start-up 0.4")
    table.row("hyperpod", "test_b", "a node dies", "the step is retried", None)
    table.write("hyperpod", page)
    first, second = rows_of(page)
    assert first.seconds == {
        **dict.fromkeys(COLUMNS[2:-1], NOT_RUN),
        "stock": "1.2",
        "today": "3.4",
        "hyperpod": "0.7 (start-up 0.4)",
    }
    assert second.seconds["stock"] == NOT_RUN and second.seconds["hyperpod"] == "–"
    assert page.read_text().startswith("before\n") and page.read_text().endswith("after\n")


def test_what_is_different_in_a_profile_stands_in_its_cell(tmp_path: Path) -> None:
    page = page_with(tmp_path, "| a node dies | requeued | 20.0 | not run | not run | not run | `test_a` |")
    table = Table()
    table.row("hyperpod", "test_a", "a node dies", "its step is retried", 9.0)
    table.write("hyperpod", page)
    [row] = rows_of(page)
    assert row.happens == "requeued" and row.seconds["hyperpod"] == "9.0: its step is retried"


def test_loopback_does_not_take_the_place_of_machines(tmp_path: Path) -> None:
    page = page_with(
        tmp_path,
        "| a | b | 1.0 | not run | not run | not run | `test_a` |",
        "| c | d | 1.0, nodes on loopback | not run | not run | not run | `test_c` |",
    )
    table = Table()
    for fault, happens in (("a", "b"), ("c", "d"), ("e", "f")):
        table.row("stock", f"test_{fault}", fault, happens, 5.0)
    table.write("stock", page, loopback=True)
    measured = [row.seconds["stock"] for row in rows_of(page)]
    assert measured == ["1.0", "5.0, nodes on loopback", "5.0, nodes on loopback"]


def test_the_page_is_one_that_a_run_can_write_into(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text(PAGE.read_text())
    Table().write("stock", page)
    assert page.read_text() == PAGE.read_text()
