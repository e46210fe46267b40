"""The bytes of every message between trainers and agents: an agent of the release before may be the other end."""

from __future__ import annotations

import json
from typing import Any, Tuple, get_args

import pytest

from hyperpod_kit.checkpoint.agent.protocol import rank_channel as ranks
from hyperpod_kit.checkpoint.agent.protocol import trainer_channel as trainer
from hyperpod_kit.checkpoint.agent.protocol.message import CaptureOutcome

KEY = (2, 5, "ab12cd")

TRAINER: Tuple[Tuple[Any, str], ...] = (
    (trainer.Connect((("10.0.0.1", 4711),)), '{"op":"connect","addresses":[["10.0.0.1",4711]]}'),
    (trainer.PartnerAt((("10.0.0.2", 4712),)), '{"op":"partner","addresses":[["10.0.0.2",4712]]}'),
    (trainer.TakeOver(), '{"op":"again"}'),
    (trainer.RestoreCompleted(KEY, "local"), '{"op":"settle","keep":[2,5,"ab12cd"],"tier":"local"}'),
    (trainer.RestoreCompleted(None, "memory"), '{"op":"settle","keep":null,"tier":"memory"}'),
    (trainer.SlotCaptured(1), '{"op":"captured","slot":1}'),
    (trainer.SaveSkipped(KEY, "no slot"), '{"op":"skipped","key":[2,5,"ab12cd"],"why":"no slot"}'),
    (
        trainer.TensorDigests(KEY, (("w", "F32 [1]", "00"),)),
        '{"op":"which","key":[2,5,"ab12cd"],"tensors":[["w","F32 [1]","00"]]}',
    ),
    (trainer.TensorDigests(KEY, None), '{"op":"which","key":[2,5,"ab12cd"],"tensors":null}'),
    (trainer.FreeSlot(KEY), '{"op":"release","key":[2,5,"ab12cd"]}'),
    (trainer.Close(), '{"op":"close"}'),
)
AGENT: Tuple[Tuple[Any, str], ...] = (
    (trainer.Ready(0), '{"ev":"ready","port":0}'),
    (trainer.Ready(0, 4712), '{"ev":"ready","port":0,"partner_port":4712}'),
    (
        trainer.StartRefused("RunIsOwned", "theirs", None),
        '{"ev":"refused","kind":"RunIsOwned","why":"theirs","hint":null}',
    ),
    (trainer.Alive(), '{"ev":"alive"}'),
    (trainer.AgentTrouble("x"), '{"ev":"trouble","why":"x"}'),
    (trainer.Stalled(""), '{"ev":"stalled","why":""}'),
    (trainer.RootTaken("x"), '{"ev":"taken","why":"x"}'),
    (trainer.Fatal("x"), '{"ev":"fatal","why":"x"}'),
    (trainer.AgentEnded("x"), '{"ev":"ended","why":"x"}'),
    (trainer.SlotReleased(0), '{"ev":"released","slot":0}'),
    (trainer.SlotReleased(None), '{"ev":"released","slot":null}'),
    (trainer.TensorQuery(KEY, "all"), '{"ev":"which","key":[2,5,"ab12cd"],"holders":"all"}'),
    (trainer.SaveSealed(KEY), '{"ev":"sealed","key":[2,5,"ab12cd"]}'),
    (trainer.SaveLocal(KEY), '{"ev":"local","key":[2,5,"ab12cd"]}'),
    (
        trainer.SaveDurable(KEY, "seq-5", CaptureOutcome.DURABLE),
        '{"ev":"durable","key":[2,5,"ab12cd"],"note":"seq-5","was":"durable"}',
    ),
    (
        trainer.SaveFailed(KEY, "x", CaptureOutcome.REFUSED),
        '{"ev":"failed","key":[2,5,"ab12cd"],"note":"x","was":"refused"}',
    ),
    (
        trainer.SaveDropped(KEY, "x", CaptureOutcome.OVERTAKEN),
        '{"ev":"dropped","key":[2,5,"ab12cd"],"note":"x","was":"overtaken"}',
    ),
)
RANKS: Tuple[Tuple[Any, str], ...] = (
    (ranks.RankJoined(), '{"op":"joined"}'),
    (
        ranks.RankCaptured(KEY, False, {"all": "d"}),
        '{"op":"captured","key":[2,5,"ab12cd"],"replicas":{"all":"d"}}',
    ),
    (
        ranks.RankCaptured(KEY, False, None, True),
        '{"op":"captured","key":[2,5,"ab12cd"],"replicas":null,"memory":true}',
    ),
    (ranks.RankCaptured(KEY, True, None), '{"op":"captured","key":[2,5,"ab12cd"],"adopted":true,"replicas":null}'),
    (ranks.RankSealed(KEY), '{"op":"sealed","key":[2,5,"ab12cd"]}'),
    (ranks.RankSkipped(KEY, "x"), '{"op":"skipped","key":[2,5,"ab12cd"],"why":"x"}'),
    (ranks.RankLocal(KEY, False), '{"op":"local","key":[2,5,"ab12cd"],"there":false}'),
    (ranks.RankPersisted(KEY, {"a": 1}), '{"op":"persisted","key":[2,5,"ab12cd"],"report":{"a":1}}'),
    (ranks.RankFailed(KEY, "x"), '{"op":"failed","key":[2,5,"ab12cd"],"why":"x"}'),
    (ranks.RankFailed(KEY, "x", True), '{"op":"failed","key":[2,5,"ab12cd"],"why":"x","full":true}'),
    (ranks.RankTensors(KEY, None), '{"op":"which","key":[2,5,"ab12cd"],"tensors":null}'),
    (ranks.RankText(KEY, "d", "[]"), '{"op":"text","key":[2,5,"ab12cd"],"digest":"d","text":"[]"}'),
    (ranks.RankHurried(), '{"op":"hurried"}'),
    (ranks.RankDone(), '{"op":"done"}'),
)
ORDERS: Tuple[Tuple[Any, str], ...] = (
    (ranks.Order(ranks.OrderKind.PERSIST, KEY), '{"op":"persist","key":[2,5,"ab12cd"],"note":""}'),
    (
        ranks.Order(ranks.OrderKind.COMPARE, KEY, "all", (0, 3)),
        '{"op":"which","key":[2,5,"ab12cd"],"note":"all","ranks":[0,3]}',
    ),
    (
        ranks.Order(ranks.OrderKind.SEND_TEXT, KEY, "d", (3,)),
        '{"op":"tell","key":[2,5,"ab12cd"],"note":"d","ranks":[3]}',
    ),
    (ranks.Order(ranks.OrderKind.COMMITTED, KEY, "seq-5"), '{"op":"committed","key":[2,5,"ab12cd"],"note":"seq-5"}'),
    (ranks.Order(ranks.OrderKind.RESYNC, None), '{"op":"again","key":[],"note":""}'),
    (ranks.Order(ranks.OrderKind.TAKEN, None, "x"), '{"op":"taken","key":[],"note":"x"}'),
    (ranks.Order(ranks.OrderKind.SHUTDOWN, None), '{"op":"bye","key":[],"note":""}'),
)
READERS = (
    (TRAINER, trainer.parse_trainer_message_if_known),
    (AGENT, trainer.parse_agent_event_if_known),
    (RANKS, ranks.parse_rank_report_if_known),
    (ORDERS, ranks.parse_order_if_known),
)


@pytest.mark.parametrize(("cases", "read"), READERS)
def test_every_message_has_the_bytes_it_always_had_and_is_read_from_them(cases: Any, read: Any) -> None:
    for message, text in cases:
        assert json.dumps(message.to_json(), separators=(",", ":")) == text
        assert read(json.loads(text)) == message


@pytest.mark.parametrize(
    ("cases", "union"), [(TRAINER, trainer.TrainerMessage), (AGENT, trainer.AgentEvent), (RANKS, ranks.RankReport)]
)
def test_no_message_is_left_out(cases: Any, union: Any) -> None:
    assert {type(message) for message, _ in cases} == set(get_args(union))
    assert len({kind.TAG for kind in get_args(union)}) == len(get_args(union)), "two messages of one name"


def test_what_this_release_does_not_know_is_passed_over() -> None:
    assert (
        trainer.parse_trainer_message_if_known({"op": "tomorrow"}) is None
        and ranks.parse_rank_report_if_known({"op": "tomorrow"}) is None
    )
    assert trainer.parse_agent_event_if_known({"ev": "tomorrow"}) is None
    assert ranks.parse_order_if_known({"op": "tomorrow", "key": [], "note": ""}) is None


def test_every_end_of_a_capture_is_told_to_the_trainer() -> None:
    assert set(trainer.END_EVENTS) == {outcome for outcome in CaptureOutcome if outcome.is_end}
