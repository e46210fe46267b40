"""The parts of `make test` and `make test-all`: each test is in one of them, and a run that was interrupted goes on."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import List, Sequence

import pytest

from tests.suite import finished, run
from tests.suite.parts import ALL, GATE, OTHER_TESTS, Lane, Part
from tests.support.rows import share

CHECKOUT = Path(__file__).parents[2]
ROW = finished.Row("data", "tree", 0, 3, 0, 0, 1.5, 1.0, "2026-11-27 03:00:00")


COMPUTING = {Lane.MACHINES, *run.COMPUTING}
MARK = ".".join(("pytest", "mark", "rehearsal"))  # not as a word, which would make this file one of them
WAITING = {Lane.MACHINES, Lane.SLURM, Lane.MOUNTS}


def has_a_rehearsal(file: Path) -> bool:
    """Whether a test of the file is marked so, by the file or by its directory's conftest.py."""
    places = (CHECKOUT / file, CHECKOUT / file.parent / "conftest.py")
    return any(MARK in place.read_text() for place in places if place.is_file())


def test_every_test_file_is_in_one_part_of_its_kind() -> None:
    places = [CHECKOUT / tests for tests in ("tests", *OTHER_TESTS)]
    files = [path.relative_to(CHECKOUT) for place in places for path in sorted(place.rglob("test_*.py"))]
    for parts in (GATE, ALL):
        for lanes, expected in ((COMPUTING, files), (WAITING, [file for file in files if has_a_rehearsal(file)])):
            for file in expected:
                having = [part.name for part in parts if part.lane in lanes and part.has(CHECKOUT, file)]
                assert len(having) == 1, f"{file} is in {having or 'no part'} of {sorted(lane.name for lane in lanes)}"


def test_names_of_parts_are_unique() -> None:
    names = [part.name for part in ALL]
    assert len(set(names)) == len(names)


def test_a_part_names_no_path_that_is_gone() -> None:
    for part in (*GATE, *ALL):
        for path in (*part.paths, *part.ignored):
            assert list(CHECKOUT.glob(path)), f"{part.name}: nothing is at {path}"


def test_what_has_passed_on_this_tree_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows/test-all.jsonl"
    assert finished.passed(path, "tree") == {}
    finished.append(path, ROW)
    finished.append(path, dataclasses.replace(ROW, part="docs", status=1, failed=1))
    finished.append(path, dataclasses.replace(ROW, part="job", tree="another"))
    with path.open("a") as rows:
        rows.write('{"part": "node", "tree": "tr')
    assert finished.passed(path, "tree") == {"data": ROW}


def test_a_part_that_failed_after_it_had_passed_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "test-all.jsonl"
    finished.append(path, ROW)
    finished.append(path, dataclasses.replace(ROW, status=1, failed=1))
    assert finished.passed(path, "tree") == {}


def test_a_run_after_a_complete_one_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "test-all.jsonl"
    finished.append(path, ROW)
    finished.append(path, finished.total([ROW]))
    assert finished.passed(path, "tree") == {}


def test_the_tree_is_named_by_contents_alone(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    assert finished.tree_of(tmp_path) == ""
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / ".gitignore").write_text("build\n")
    (tmp_path / "file").write_text("1")
    first = finished.tree_of(tmp_path)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "."], check=True)
    (tmp_path / "build").write_text("ignored")
    assert first and finished.tree_of(tmp_path) == first
    (tmp_path / "file").write_text("2")
    assert finished.tree_of(tmp_path) not in ("", first)


class Ending:
    """A run that ends when it is asked for the second time."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.asked = 0

    def has_ended(self) -> bool:
        self.asked += 1
        return self.asked > 1


def _parts(*lanes: Lane) -> List[Part]:
    return [Part(f"{number} {lane.name}", lane, ()) for number, lane in enumerate(lanes)]


@pytest.mark.parametrize(
    "apart, workers, at_first, order",
    [
        (True, 2, ["0 MACHINES", "1 MOUNTS", "2 STEPS", "3 PROCESSOR", "4 PROCESSOR"], ["0", "1", "2", "3", "4"]),
        (True, 1, ["0 MACHINES", "1 MOUNTS", "2 STEPS", "3 PROCESSOR"], ["0", "1", "2", "3", "4"]),
        (False, 2, ["2 STEPS", "3 PROCESSOR", "4 PROCESSOR"], ["2", "3", "4", "1", "0"]),
        (False, 1, ["2 STEPS", "3 PROCESSOR"], ["2", "3", "4", "1", "0"]),
    ],
)
def test_lanes_run_beside_each_other_where_they_can(
    apart: bool, workers: int, at_first: List[str], order: Sequence[str]
) -> None:
    events = []

    def start(part: Part) -> Ending:
        events.append(f"start {part.name}")
        return Ending(part)

    def ended(ending: Ending) -> None:
        events.append(f"end {ending.part.name}")

    parts = _parts(Lane.MACHINES, Lane.MOUNTS, Lane.STEPS, Lane.PROCESSOR, Lane.PROCESSOR)
    for lanes in run.stages_of(parts, apart, workers):
        assert not run.run_lanes(lanes, start, ended)  # type: ignore[arg-type]
    assert events[: len(at_first) + 1] == [*(f"start {name}" for name in at_first), f"end {at_first[0]}"]
    assert [event.split()[1] for event in events if event.startswith("start")] == order
    assert sum(event.startswith("end") for event in events) == len(parts)


def test_what_waited_gives_its_place_to_what_computes() -> None:
    parts = _parts(Lane.MACHINES, Lane.SLURM, Lane.STEPS, *[Lane.PROCESSOR] * 4)
    (lanes,) = run.stages_of(parts, True, 1)
    begun: List[str] = []

    class Waiting(Ending):
        def has_ended(self) -> bool:
            """What computes ends when three of its parts run; the other parts at once."""
            return self.part.lane is not Lane.PROCESSOR or len(begun) >= 6

    def start(part: Part) -> Waiting:
        begun.append(part.name)
        return Waiting(part)

    assert not run.run_lanes(lanes, start, lambda ending: None)  # type: ignore[arg-type]
    assert begun[:6] == ["0 MACHINES", "1 SLURM", "2 STEPS", "3 PROCESSOR", "4 PROCESSOR", "5 PROCESSOR"]


def test_a_part_that_computes_alone_has_all_workers() -> None:
    several = _parts(Lane.PROCESSOR, Lane.PROCESSOR, Lane.SLURM)
    assert [run.workers_of(part, several, 3) for part in several] == [1, 1, 1]
    alone = several[1:]
    assert [run.workers_of(part, alone, 3) for part in alone] == [3, 1]
    assert "-n" in alone[0].arguments(CHECKOUT, 3) and "-n" not in alone[0].arguments(CHECKOUT, 1)


def test_ctrl_c_waits_for_what_runs_and_starts_nothing_more() -> None:
    events = []

    class Interrupted(Ending):
        def has_ended(self) -> bool:
            if self.asked == 0:
                self.asked = 1
                raise KeyboardInterrupt
            return True

    def start(part: Part) -> Ending:
        events.append(f"start {part.name}")
        return Interrupted(part)

    def ended(ending: Ending) -> None:
        events.append(f"end {ending.part.name}")

    parts = _parts(Lane.PROCESSOR, Lane.PROCESSOR)
    assert run.run_lanes(run.stages_of(parts, True, 1)[0], start, ended)  # type: ignore[arg-type]
    assert events == ["start 0 PROCESSOR", "end 0 PROCESSOR"]


def test_the_gates_share_of_rows_is_spread_over_all_and_the_others_are_full() -> None:
    every = share([*"abcdefg", pytest.param("h", id="last", marks=pytest.mark.quick)], 3)
    assert [row for row in every if isinstance(row, str)] == ["a", "c", "f"]
    others = [row for row in every if not isinstance(row, str)]
    assert [row.values[0] for row in others] == [*"bdegh"] and others[-1].id == "last"
    assert all(row.marks[-1].name == "full" for row in others) and len(others[-1].marks) == 2


def test_no_directory_of_a_run_is_closed_by_another_one(tmp_path: Path) -> None:
    assert not [folder for folder in tmp_path.parents if folder.name.startswith("pytest-of-")]
