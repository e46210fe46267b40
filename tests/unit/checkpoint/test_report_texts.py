"""Reports whose long texts are named by digests: whoever is asked, whenever, what comes out is what the ranks have."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hyperpod_kit.checkpoint.agent.reports import shard_report
from hyperpod_kit.checkpoint.agent.reports.report_texts import ReportDecoder, ReportEncoder, ReportUpdate, TextRequest
from hyperpod_kit.checkpoint.agent.reports.shard_report import Report, ShardReport
from hyperpod_kit.checkpoint.agent.shm.control_page import CaptureOrigin, Key, Page, ShardFacts, SlotState
from hyperpod_kit.checkpoint.repository.format import digest, shard
from hyperpod_kit.checkpoint.repository.format.manifest import FileRecord
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.errors import CheckpointError

NAMES = [f"layers.{number}.weight" for number in range(40)]
"""Long enough to be said by their digest."""


def key(seq: int) -> Key:
    return (1, seq, "a")


def report(rank: int, world: int, seq: int, *, lr: float = 0.1, stage: int = 0, rows: int = 1) -> Report:
    """What a rank has: names of its stage, a learning rate that all have alike, random states of its own."""
    names = [f"stage{stage}.{name}" for name in NAMES]
    tree = {
        "model": {name: {"$": "tensor", "name": f"model.{name}"} for name in names},
        "optimizer": {"param_groups": [{"lr": lr, "params": names}]},
        "rng": "r" * 2000 + str(rank),
        "extra": {"tokens": seq},
    }
    extra = json.dumps(tree, separators=(",", ":"))
    specs = [TensorSpec(f"model.{name}", "F32", (rows, 2), (rows * rank, 0), (rows * world, 2)) for name in names]
    specs.append(TensorSpec(f"rank.{rank:05d}.own", "U8", (rank + 1,)))
    laid = shard.lay_out(specs, rank=rank, world=world, run_id="r" * 32, plan="p")
    root, text = f"xxh3:{rank:032x}", digest.small_object_digest(extra.encode())
    facts = ShardFacts("xxh3", digest.CHUNK, laid.size, laid.fingerprint, "p", 1, 1, len(extra), text, root)
    page = Page(
        SlotState.SEALED,
        CaptureOrigin(rank, world, "a"),
        1,
        seq,
        seq,
        facts,
    )
    record = FileRecord(f"shard-{rank:05d}.safetensors", laid.size, page.shard.root, rank)
    return Report(page, record, extra, laid.tensors)


class Run:
    """Agents, and rank 0's, with a wire that says what a wire can say."""

    def __init__(self, world: int) -> None:
        self.tellers = [ReportEncoder(inline_texts=rank == 0) for rank in range(world)]
        self.texts = ReportDecoder()
        self.asks: List[TextRequest] = []
        self.bytes = self.asked = 0
        self.whole: Dict[int, ShardReport] = {}
        self.whole_of: Dict[Tuple[int, Key], ShardReport] = {}
        self.failed: List[int] = []

    def take(self, heard: ReportUpdate) -> None:
        self.asks += heard.requests
        self.asked += len(heard.requests)
        self.whole.update({rank: found for rank, _, found in heard.reports})
        self.whole_of.update({(rank, about): found for rank, about, found in heard.reports})
        self.failed += [rank for rank, _, _ in heard.failed]

    def say(self, rank: int, one: Report) -> None:
        wire = json.dumps(self.tellers[rank].encode(one))
        self.bytes += len(wire)
        self.take(self.texts.add_report(rank, one.page.key, json.loads(wire)))

    def answer(self, number: int = 0) -> None:
        rank, about, wanted = self.asks.pop(number)
        text = self.tellers[rank].look_up_text_and_inline_from_now(wanted)
        self.bytes += len(text or "")
        self.take(self.texts.add_text(rank, about, wanted, text))


@given(some.integers(1, 6), some.integers(1, 3), some.randoms(use_true_random=False))
def test_in_whatever_order_they_speak_and_are_asked_every_report_is_what_its_rank_has(
    world: int, stages: int, dice: random.Random
) -> None:
    run = Run(world)
    wanted = {
        (rank, key(seq)): report(rank, world, seq, lr=seq / 10, stage=rank % stages, rows=1 + (seq > 2))
        for rank in range(world)
        for seq in range(1, 6)
    }
    to_say = [rank for rank in range(world) for _ in range(5)]
    dice.shuffle(to_say)
    said = [0] * world
    while to_say or run.asks:
        if run.asks and (not to_say or dice.random() < 0.4):
            run.answer(dice.randrange(len(run.asks)))
        else:
            rank = to_say.pop()
            said[rank] += 1
            run.say(rank, wanted[rank, key(said[rank])])
    assert (
        run.whole_of == {place: shard_report.to_shard_report(one) for place, one in wanted.items()} and not run.failed
    )


def test_a_later_save_costs_the_same_bytes_whatever_the_number_of_tensors() -> None:
    run = Run(8)
    for seq in (1, 2):
        for rank in range(8):
            run.say(rank, report(rank, 8, seq))
            while run.asks:
                run.answer()
    before = run.bytes
    for rank in range(1, 8):
        run.say(rank, report(rank, 8, 3))
    assert not run.asks
    assert (run.bytes - before) / 7 < 2000 + 1000 < len(report(1, 8, 3).extra)


def test_each_text_is_asked_of_one_rank_and_of_none_that_rank_0_has_said() -> None:
    run = Run(5)
    for rank in range(1, 5):
        run.say(rank, report(rank, 5, 1))
    assert len({one.digest for one in run.asks}) == len(run.asks) == 3  # model, optimizer, pattern
    other = Run(5)
    for rank in range(5):
        other.say(rank, report(rank, 5, 1))
    assert not other.asks and sorted(other.whole) == [0, 1, 2, 3, 4]


def test_a_text_that_changes_is_not_asked_for_at_every_save() -> None:
    run = Run(3)
    for seq in (1, 2, 3):
        for rank in (1, 2, 0):
            run.say(rank, report(rank, 3, seq, lr=seq / 10))
        while run.asks:
            run.answer()
        assert sorted(run.whole) == [0, 1, 2]
    assert run.asked == 3


def test_where_the_rank_that_was_asked_is_lost_another_one_is() -> None:
    run = Run(4)
    for rank in (1, 2, 3):
        run.say(rank, report(rank, 4, 1))
    assert {one.rank for one in run.asks} == {1}
    run.asks.clear()
    run.take(run.texts.remove_rank(1))
    assert {one.rank for one in run.asks} == {2}
    while run.asks:
        run.answer()
    assert sorted(run.whole) == [2, 3]


def test_a_text_that_is_not_known_any_more_fails_that_rank_and_is_asked_of_the_next() -> None:
    for answer in (None, "another text"):
        run = Run(4)
        for rank in (1, 2):
            run.say(rank, report(rank, 4, 1))
        rank, about, wanted = run.asks.pop()
        run.take(run.texts.add_text(rank, about, wanted, answer))
        assert run.failed == [1] and run.asks[-1] == TextRequest(2, about, wanted)


def test_a_layout_that_was_never_said_is_no_report() -> None:
    run = Run(2)
    run.tellers[1].encode(report(1, 2, 1))  # heard by an agent that died
    for rank in (0, 1):
        run.say(rank, report(rank, 2, 1))
    assert run.failed == [1] and sorted(run.whole) == [0]
    run.tellers[1].forget_sent_layout()
    run.say(1, report(1, 2, 1))
    assert run.whole[1] == shard_report.to_shard_report(report(1, 2, 1))


def test_what_is_not_what_was_captured_is_never_said() -> None:
    one = report(0, 1, 1)
    with pytest.raises(CheckpointError, match="not what it captured"):
        ReportEncoder().encode(one._replace(extra=one.extra.replace("0.1", "0.2")))


GOOD = ReportEncoder(inline_texts=True).encode(report(0, 1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": None},
        {"parts": [1]},
        {"parts": [["model"]]},
        {"parts": [["model", None]]},
        {"parts": [["model", None, 7]]},
        {"parts": [["model", "{}", "blake2b:00"]]},
        {"parts": [[1, "{}"]]},
        {"pattern": [""]},
        {"pieces": [[1]]},
        {"record": {"file": 1, "size": 1, "root": ""}},
        {"record": {"bad": 1}},
        {"page": {}},
        {"page": []},
    ],
)
def test_what_is_no_report_is_an_error_that_whoever_listens_knows(wrong: Dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        ReportDecoder().add_report(0, key(1), {**GOOD, **wrong})


def test_texts_of_old_saves_are_forgotten() -> None:
    texts = ReportDecoder()
    sizes: List[Tuple[int, int]] = []
    for seq in range(1, 30):
        texts.add_report(
            0, key(seq), ReportEncoder(inline_texts=True).encode(report(0, 1, seq, lr=seq / 10, stage=seq))
        )
        sizes.append((len(texts._texts), len(texts._last_used)))
    assert max(sizes) == sizes[-1] == (9, 9)
