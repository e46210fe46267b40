"""The plan of a job: sizes, choices, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import ConfigError, UsageError
from hyperpod_kit.storage.plan import catalog, facts, failures, plan, prices, seeds, sizing
from hyperpod_kit.storage.plan.calibration import Calibration, Sample
from hyperpod_kit.storage.plan.candidates import StorageChoice
from hyperpod_kit.storage.plan.catalog import LustreSize
from hyperpod_kit.storage.plan.facts import GIB, JobFacts, PlannedWriter

HOUR = 3600.0
SEED = JobFacts(seeds.PARAMETERS, 8, 1, 50_000 / 8 * HOUR)
BIG = JobFacts(70.6e9, 64, 8, 50_000 / 64 * HOUR, writer=PlannedWriter.DCP, every=600)


def made(job: JobFacts, **others: Any) -> plan.Plan:
    return plan.make_plan(replace(job, **others), seeds.CHECKPOINTS)


def of(found: plan.Plan, kind: str) -> StorageChoice:
    return next(one for one in found.candidates if one.kind.name == kind)


@pytest.mark.parametrize(("parameters", "gib"), [(8.03e9, 105), (70.553706e9, 912), (405.85e9, 5290)])
def test_d8_sizes_are_those_of_mlperf_storage_within_1_percent(parameters: float, gib: float) -> None:
    size = sizing.checkpoint_size(JobFacts(parameters, 8, 1, HOUR, dtype="bf16"))
    assert size.total / GIB == pytest.approx(gib, rel=0.01)


def test_sizes_are_those_of_the_published_table() -> None:
    size = sizing.checkpoint_size(replace(SEED, writer=PlannedWriter.TORCH_SAVE))
    assert size.model / GIB == pytest.approx(29.93, rel=0.001) and size.optimizer / GIB == pytest.approx(
        59.85, rel=0.001
    )
    assert (size.files, size.file) == (1, size.optimizer) and size.shared_memory == 0
    ours = sizing.checkpoint_size(SEED)
    assert ours.files == 8 and ours.shared_memory == pytest.approx(2 * ours.total)


def test_d3_without_a_calibration_every_time_is_a_band_and_the_plan_says_so() -> None:
    found = plan.make_plan(SEED)
    assert found.calibration is None and any("not calibrated" in text for text in found.warnings)
    for one in found.candidates:
        assert not one.calibrated
        assert one.durable.low <= one.durable.likely < one.durable.high and one.durable.high > 1.5 * one.durable.low
        assert one.stall.low < one.stall.high


def test_d4_a_small_model_with_rare_full_checkpoints_is_saved_through_mountpoint() -> None:
    found = made(SEED, writer=PlannedWriter.TORCH_SAVE, every=4 * HOUR)
    assert found.chosen is of(found, "mountpoint-s3") and found.chosen.durable.likely == pytest.approx(332, rel=0.07)
    assert not any("published advice" in text for text in found.warnings)


def test_d4_a_large_model_with_frequent_sharded_checkpoints_is_saved_on_fsx() -> None:
    found = made(BIG)
    assert found.chosen is not None and found.chosen.kind.name == "fsx-lustre"
    assert any("renames its files" in text for text in of(found, "mountpoint-s3").refused)
    full = made(BIG, writer=PlannedWriter.TORCH_SAVE)
    assert all(one.refused for one in full.candidates) and full.chosen is None
    assert any("no option fits" in text for text in full.warnings) and full.recommended_settings() == {}


def test_d4_where_the_plan_differs_from_the_published_advice_it_says_why() -> None:
    found = made(BIG, writer=PlannedWriter.HYPERPOD_KIT)
    assert found.chosen is not None and found.chosen.kind.name in ("s3", "mountpoint-s3")
    assert any("published advice" in text and "never renames" in text for text in found.warnings)


def test_d5_the_smallest_fsx_that_holds_no_writer_back_is_on_the_curve_with_its_headroom() -> None:
    curve = made(SEED, writer=PlannedWriter.DCP, fsx_throughput=250, every=4 * HOUR).curve
    (last,) = [one for one in curve if one.lustre == LustreSize(4800, 250)]
    assert last is curve[-1] and last.durable.likely == pytest.approx(92, rel=0.05)
    assert last.headroom == pytest.approx(0.128, abs=0.001)
    assert LustreSize(60_000, 250).bandwidth == 15_000e6


def test_fsx_is_offered_along_the_trade_off_of_money_against_stall() -> None:
    curve = made(JobFacts(70.6e9, 512, 64, 97.7 * HOUR, dtype="bf16"), writer=PlannedWriter.DCP).curve
    costs, losses = [one.monthly_usd for one in curve], [one.rhythm.avoidable for one in curve]
    assert costs == sorted(costs) and losses == sorted(losses, reverse=True)
    assert len(curve) >= 6 and costs[0] < 1000 < 40_000 < costs[-1] and losses[-1] < losses[0] / 5


def test_each_request_costs_money_and_a_prefix_takes_so_many_a_second() -> None:
    job = JobFacts(405e9, 16_384, 2048, 3.05 * HOUR, dtype="bf16")
    found = of(made(job), "s3")
    assert found.requests == 16_384 * (21 + 2)
    assert found.durable.low >= found.requests / 3500 and found.rhythm.every >= found.durable.likely
    # What the request price alone makes of it, by hand.
    saves = 730 * 3600 * found.rhythm.goodput / found.rhythm.every
    kept = 3 * 405e9 * 14 / 1e9 * 0.023
    loads = 730 / 3.05 * (1 - job.memory_share)
    assert found.reads == 16_384 * 21
    requests = saves * found.requests * 0.005 / 1000 + loads * found.reads * 0.0004 / 1000
    assert found.monthly_usd == pytest.approx(kept + requests)
    spread = of(made(job, prefixes=16), "s3")
    assert spread.durable.low == pytest.approx(found.durable.low / 16, rel=0.1)
    express = of(made(job), "s3-express")
    assert express.durable.low < found.durable.low / 10 and any("one zone" in text for text in express.notes)


def test_where_requests_and_gpu_hours_cost_money_the_rhythm_weighs_both() -> None:
    job = JobFacts(405e9, 16_384, 2048, 3.05 * HOUR, dtype="bf16")
    often, cheap = of(made(job, gpu_hour=2.5), "s3-express"), of(made(job, gpu_hour=0.01), "s3-express")
    assert cheap.rhythm.every > often.rhythm.every and cheap.monthly_usd < often.monthly_usd


def test_the_published_advice_for_a_large_model_wins_where_it_is_cheaper() -> None:
    found = made(JobFacts(70.6e9, 512, 64, 97.7 * HOUR, dtype="bf16"))
    assert found.chosen is not None and found.chosen.kind.name == "fsx-lustre"
    assert found.chosen.monthly_usd < of(found, "s3").monthly_usd
    assert not any("published advice" in text for text in found.warnings)


def test_after_a_lost_node_the_checkpoint_comes_from_where_its_bytes_are() -> None:
    chain = of(made(BIG), "nvme")
    away = seeds.CHECKPOINTS.fitted_rate("nvme-to-s3", "dcp")
    size = sizing.checkpoint_size(BIG)
    assert away is not None
    assert chain.load == pytest.approx(max(away.predict_seconds(size.total, size.files), chain.requests / 3500))
    assert chain.load < chain.stall.likely


def test_efa_has_sizes_of_its_own_and_a_node_gets_more() -> None:
    assert catalog.smallest_lustre_size(1, 1, 1000, efa=True) == LustreSize(4800, 1000, True)
    assert catalog.smallest_lustre_size(1, 5000 * 2**30, 125, efa=True).capacity == 38_400
    with pytest.raises(UsageError, match="expected a multiple of 19200"):
        LustreSize(4800, 250, efa=True)
    job = replace(BIG, network=3200e9 / 8, fsx_throughput=1000, every=None)
    plain, efa = made(job), made(job, efa=True)
    assert of(efa, "fsx-lustre").lustre is not None
    assert efa.curve[-1].durable.likely <= plain.curve[-1].durable.likely
    assert efa.curve[-1].lustre.efa  # type: ignore[union-attr]


def test_one_file_is_no_faster_than_the_targets_that_it_is_striped_over() -> None:
    size = LustreSize(12_000, 250)
    assert size.file_bandwidth(50 * 2**20) == 300e6 and size.file_bandwidth(2 * 2**30) == 8 * 300e6
    assert size.file_bandwidth(2**40) == 10 * 300e6  # there are no more


def test_a_kind_without_a_known_price_is_never_chosen_and_says_which_price_it_needs(tmp_path: Path) -> None:
    tiered = of(made(BIG), "fsx-intelligent-tiering")
    assert tiered.cost.usd is None and any("--prices FILE with fsx-intelligent" in text for text in tiered.refused)
    own = tmp_path / "prices.json"
    names = ("fsx-intelligent-tiering", "fsx-intelligent-tiering-throughput")
    own.write_text(json.dumps({name: {"usd": 0.01, "date": "2026-11-01"} for name in names}))
    priced = of(
        plan.make_plan(BIG, seeds.CHECKPOINTS, prices.load_prices_over_defaults(own)), "fsx-intelligent-tiering"
    )
    assert priced.cost.usd is not None and not priced.refused
    assert json.loads(json.dumps(made(BIG).to_json()))["candidates"][-2]["usd_a_month"] is None


def test_everything_that_was_assumed_is_on_the_screen() -> None:
    lines = "\n".join(made(JobFacts(70e9, 512, 64, 97.7 * HOUR, dtype="bf16")).assumptions)
    for words in ("bf16", "one failure in 97.7 h, as given", "100 Gbit/s", "3,500 requests", "300 s from a failure"):
        assert words in lines
    for words in ("no price (--gpu-hour-price)", "without EFA", "3 checkpoints are kept", "read back in"):
        assert words in lines


def test_d5_capacities_that_do_not_exist_are_refused() -> None:
    for capacity in (0, -2400, 1000, 3600, 4801):
        with pytest.raises(UsageError, match="expected 1200, 2400 or a multiple"):
            LustreSize(capacity, 250)
    with pytest.raises(UsageError, match="expected one of"):
        LustreSize(1200, 200)
    assert [catalog.smallest_lustre_size(1, room * 2**30, 125).capacity for room in (1, 1200, 1201, 2400, 2401)] == [
        1200,
        1200,
        2400,
        2400,
        4800,
    ]


def test_a_file_system_that_nobody_waits_for_is_not_sized_for_the_writers_peak() -> None:
    job = JobFacts(70e9, 512, 64, 97.7 * HOUR)
    waited = of(made(job, writer=PlannedWriter.DCP, fsx_throughput=250), "fsx-lustre").lustre
    behind = of(made(job, fsx_throughput=250), "fsx-lustre")
    assert waited is not None and behind.lustre is not None and behind.lustre.capacity < waited.capacity / 10
    assert behind.durable.likely < behind.rhythm.every and not behind.refused


def test_d6_a_file_that_mountpoint_cannot_hold_is_refused_unless_parts_are_larger() -> None:
    job = JobFacts(70e9, 64, 8, 700 * HOUR, writer=PlannedWriter.TORCH_SAVE)
    small = of(made(job, mountpoint_part_mib=8), "mountpoint-s3")
    assert any("78.12 GiB" in text and "write_part_size_mib" in text for text in small.refused)
    size = sizing.checkpoint_size(job)
    raised = of(made(job, mountpoint_part_mib=size.part_mib), "mountpoint-s3")
    assert not any("parts" in text for text in raised.refused)
    assert sizing.max_file_bytes(size.part_mib) >= size.file > sizing.max_file_bytes(size.part_mib - 1)
    assert sizing.checkpoint_size(replace(SEED, writer=PlannedWriter.TORCH_SAVE)).part_mib == 8
    alone = made(job, every=2 * 24 * HOUR)
    if alone.chosen is not None and alone.chosen.kind.name == "mountpoint-s3":
        assert alone.recommended_settings()["mount"]["write_part_size_mib"] == size.part_mib


def test_d6_more_open_files_than_mountpoints_memory_allows_are_refused() -> None:
    assert of(made(SEED, mountpoint_memory=200 * 2**20), "mountpoint-s3").refused == ()
    assert sizing.max_open_writers(200 * 2**20, 8) == 8 and sizing.max_open_writers(199 * 2**20, 8) == 7
    assert any(
        "files a node" in text for text in of(made(SEED, mountpoint_memory=199 * 2**20), "mountpoint-s3").refused
    )
    assert sizing.max_open_writers(0, 8) == 0 and sizing.max_open_writers(8 * 2**30, 8) == 895


def test_rates_of_small_checkpoints_are_not_trusted_for_large_ones_in_silence() -> None:
    small = Calibration("small", (Sample("fsx-lustre", "dcp", 8, 1, 0.1 * GIB, 0.5),))
    found = plan.make_plan(replace(SEED, writer=PlannedWriter.DCP), small)
    assert any(
        "measured with 12.8 MiB a writer, planned with 11.22 GiB" in text for text in of(found, "fsx-lustre").notes
    )
    assert not any("a writer" in text for one in made(SEED, writer=PlannedWriter.DCP).candidates for text in one.notes)


def test_lost_gpu_hours_weigh_where_they_have_a_price() -> None:
    cheap, dear = made(BIG, every=None), made(BIG, every=None, gpu_hour=5.0)
    assert cheap.chosen is not None and dear.chosen is not None
    assert dear.chosen.rhythm.avoidable <= cheap.chosen.rhythm.avoidable


def test_a_budget_refuses_what_costs_more() -> None:
    found = made(BIG, budget=100.0)
    assert all(any("the budget is 100" in text for text in one.refused) for one in found.candidates if one.lustre)


def test_every_price_has_its_day_and_one_of_ones_own_takes_its_place(tmp_path: Path) -> None:
    assert all(price.date for key, price in prices.PRICES.items() if price.usd)
    own = tmp_path / "prices.json"
    own.write_text(json.dumps({"fsx-lustre-250": {"usd": 0.1, "date": "2026-11-01"}}))
    found = plan.make_plan(replace(SEED, fsx_throughput=250), seeds.CHECKPOINTS, prices.load_prices_over_defaults(own))
    lustre = of(found, "fsx-lustre")
    assert lustre.cost.prices == (("fsx-lustre-250", prices.Price(0.1, "2026-11-01", "prices.json")),)
    assert lustre.lustre is not None and lustre.monthly_usd == pytest.approx(0.1 * lustre.lustre.capacity)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "not a list of prices"),
        ('{"gold": {"usd": 1, "date": "2026"}}', "not a price that is used"),
        ('{"s3": 1}', "s3.usd is None"),
        ('{"s3": {"usd": -1, "date": "2026"}}', "s3.usd is -1"),
        ('{"s3": {"usd": 1}}', "expected the day of the price"),
    ],
)
def test_prices_that_are_none_are_named(tmp_path: Path, body: str, words: str) -> None:
    (tmp_path / "p.json").write_text(body)
    with pytest.raises(ConfigError, match=words):
        prices.load_prices_over_defaults(tmp_path / "p.json")


def test_two_tiers_are_planned_where_memory_survives_failures() -> None:
    found = made(JobFacts(405e9, 1024, 128, 10 * HOUR), memory_share=0.75)
    tiers = found.best_two_tier_rhythm()
    assert tiers is not None and found.chosen is not None and tiers.waste <= found.chosen.rhythm.waste + 1e-9
    assert made(SEED).best_two_tier_rhythm() is None


def test_the_plan_is_json_and_names_its_choice() -> None:
    found = made(SEED, data=facts.DataSet(100e9, 1000))
    body = json.loads(json.dumps(found.to_json()))
    assert body["candidates"][body["chosen"]]["storage"] == found.chosen.kind.name  # type: ignore[union-attr]
    assert body["settings"]["manager"]["keep_latest"] == 3 and body["data"]["place"] == "stream"


def test_failures_are_counted_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    rows = [{"event": "end", "class": kind, "seconds": 3600.0} for kind in ("crash", "node_lost", "requeued", "done")]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"class": "crash", "seconds": "x"}]) + "torn")
    assert failures.measure_mtbf_seconds_from_ledger(path) == 4 * 3600 / 2
    path.write_text(json.dumps(rows[3]) + "\n")
    with pytest.raises(UsageError, match=r"0 failures in 1\.0 h"):
        failures.measure_mtbf_seconds_from_ledger(path)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (facts.parse_count, "8.03B", 8.03e9),
        (facts.parse_count, "70b", 70e9),
        (facts.parse_count, "8e9", 8e9),
        (facts.parse_size, "100GB", 100e9),
        (facts.parse_size, "570KiB", 570 * 1024),
        (facts.parse_size, "1.5T", 1.5e12),
        (facts.parse_size, "12", 12),
        (facts.parse_seconds, "15min", 900),
        (facts.parse_seconds, "4h", 14400),
        (facts.parse_seconds, "90", 90),
    ],
)
def test_words_are_read(parse: Any, text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "x", "-1", "8Q", "1e", "nan", "1 2", "٣"])
def test_words_that_mean_nothing_are_refused(text: str) -> None:
    for parse in (facts.parse_count, facts.parse_size, facts.parse_seconds):
        with pytest.raises(UsageError, match="expected"):
            parse(text)


@pytest.mark.parametrize(
    "wrong",
    [{"ranks": 7, "nodes": 2}, {"mtbf": 0}, {"mtbf": float("inf")}, {"memory_share": 1.1}, {"parameters": -1}],
)
def test_facts_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(SEED, **wrong)
