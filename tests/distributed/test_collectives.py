"""Each collective among four real gloo processes: what all hear, also when one says what it must not."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed import collectives_job
from tests.distributed.rank_process import CONTEXT

pytestmark = pytest.mark.distributed
WORLD = 4


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw, by rank."""
    place = tmp_path_factory.mktemp("collectives")
    answers = [place / f"{rank}.json" for rank in range(WORLD)]
    ranks = [
        CONTEXT.Process(target=collectives_job.main, args=(rank, WORLD, str(place / "meeting"), str(answer)))
        for rank, answer in enumerate(answers)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
        process.kill()
    return [json.loads(answer.read_text()) for answer in answers]


def all_saw(seen: list[dict[str, Any]], name: str, expected: Any) -> None:
    assert [one[name] for one in seen] == [expected] * WORLD


@pytest.mark.full
def test_everybody_hears_everybody_whether_they_say_the_same_or_not(seen: list[dict[str, Any]]) -> None:
    all_saw(seen, "meet", [["x" * 5000 * rank, rank] for rank in range(WORLD)])
    all_saw(seen, "same", [{"plan": "alike", "size": 7}] * WORLD)
    all_saw(seen, "differ", ["y" * 3000 * rank for rank in range(WORLD)])
    all_saw(seen, "nothing", [None] * WORLD)
    all_saw(seen, "after all that", list(range(WORLD)))


def test_one_problem_is_everybodys(seen: list[dict[str, Any]]) -> None:
    all_saw(seen, "agree", "rank 2: torn")
    all_saw(seen, "agreed", None)


def test_what_cannot_be_told_is_an_error_on_all_ranks(seen: list[dict[str, Any]]) -> None:
    for name in ("one untold", "all untold", "sent nothing of ours", "sent too much"):
        assert all(one[name].startswith("CheckpointError: ") for one in seen), name


def test_a_broadcast_is_what_its_source_has(seen: list[dict[str, Any]]) -> None:
    for size in (0, 4000, 9000):
        all_saw(seen, f"sent {size}", bytes(number % 251 for number in range(size)).hex())


def test_each_is_handed_its_own_part(seen: list[dict[str, Any]]) -> None:
    assert [one["handed out"] for one in seen] == [{"rng": "z" * 300 * rank, "rank": rank} for rank in range(WORLD)]
