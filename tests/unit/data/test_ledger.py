"""The ledger finds what was lost, what came twice and what a rank did not note, and knows what was rolled back."""

from __future__ import annotations

import json

import pytest

from hyperpod_kit.data import ElasticLoader, SequentialOrder
from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from hyperpod_kit.data.tokens.packing import WindowOrder
from hyperpod_kit.errors import DataError


class Numbers:
    """n at n."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return number


def loader(folder, launch, count=20, **how):
    return ElasticLoader(Numbers(count), 4, ledger=folder, launch=launch, **how)


def lines(folder):
    (path,) = folder.iterdir()
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def test_two_whole_epochs(tmp_path):
    one = loader(tmp_path, "a")
    for _ in range(2):
        list(one)
    found = check_sample_log(tmp_path)
    assert found.is_exactly_once and [(epoch.once, epoch.complete) for epoch in found.epochs] == [
        (20, True),
        (20, True),
    ]


def test_what_was_rolled_back_counts_for_nothing(tmp_path):
    first = loader(tmp_path, "a")
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    next(batches)
    next(batches)
    second = loader(tmp_path, "b")
    second.load_state_dict(state)
    list(second)
    found = check_sample_log(tmp_path)
    assert found.is_exactly_once and (found.launches, found.rolled_back, found.steps) == (
        2,
        1,
        5,
    )  # the third was in hand


def test_windows_of_another_epoch_are_named(tmp_path):
    """They are numbered over all epochs, as their tokens are others in each."""
    one = loader(tmp_path, "a", order=WindowOrder(20, SequentialOrder(50), 8, "lengths"))
    for _ in range(2):
        list(one)
    assert check_sample_log(tmp_path).is_exactly_once
    path, said = lines(tmp_path)
    for line in said:
        line["i"] = [number % 20 for number in line.get("i", ())]
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    found = check_sample_log(tmp_path)
    assert [(epoch.once, epoch.complete) for epoch in found.epochs] == [(20, True), (20, True)]
    assert (
        not found.is_exactly_once
        and len(found.problems) == 5
        and "windows of another epoch than 1" in found.problems[0]
    )


def test_what_comes_twice_or_never_is_named(tmp_path):
    list(loader(tmp_path, "a"))
    path, said = lines(tmp_path)
    said[2]["i"][1] = said[1]["i"][0]
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    found = check_sample_log(tmp_path)
    assert not found.is_exactly_once and found.epochs[0].repeated == (said[1]["i"][0],)
    assert len(found.epochs[0].missing) == 1


def test_a_step_that_is_missing_is_named(tmp_path):
    list(loader(tmp_path, "a"))
    path, said = lines(tmp_path)
    path.write_text("".join(json.dumps(line) + "\n" for number, line in enumerate(said) if number != 3))
    assert len(check_sample_log(tmp_path).epochs[0].missing) == 4


def test_a_rank_that_noted_nothing_is_named(tmp_path):
    ranks = [loader(tmp_path, "a", rank=rank, ranks=2) for rank in range(2)]
    list(ranks[0])
    list(zip(range(1), ranks[1], strict=False))
    found = check_sample_log(tmp_path)
    assert not found.is_exactly_once and "no line of ranks [1]" in found.problems[0]


def test_a_position_that_jumped_back_without_a_checkpoint_is_seen_as_rolled_back(tmp_path):
    one = loader(tmp_path, "a")
    start = one.state_dict()
    list(zip(range(3), one, strict=False))
    one.load_state_dict(start)
    list(one)
    assert check_sample_log(tmp_path).is_exactly_once


def test_dropped_samples_are_left_out_and_no_loss(tmp_path):
    list(loader(tmp_path, "a", count=22, last="drop"))
    found = check_sample_log(tmp_path)
    assert found.is_exactly_once and (found.epochs[0].once, found.epochs[0].left_out) == (20, 2)


def test_a_line_that_was_cut_is_passed_over_only_at_the_end(tmp_path):
    list(loader(tmp_path, "a"))
    path, _ = lines(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    found = check_sample_log(tmp_path)
    assert found.problems == () and not found.epochs[0].complete
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], text[1][:-5], *text[2:]]) + "\n")
    assert "line 2" in check_sample_log(tmp_path).problems[0]


def test_ledgers_of_other_data_are_not_mixed(tmp_path):
    list(loader(tmp_path, "a"))
    list(ElasticLoader(Numbers(20), 4, order=SequentialOrder(20), ledger=tmp_path, launch="b"))
    with pytest.raises(DataError, match="several data sets or orders"):
        check_sample_log(tmp_path)
    with pytest.raises(DataError, match="has no ledger"):
        check_sample_log(tmp_path / "none")


def test_ranks_need_a_name_for_their_launch(tmp_path, monkeypatch):
    for name in ("HPK_ATTEMPT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="a name of their launch"):
        loader(tmp_path, None, rank=0, ranks=2)
    monkeypatch.setenv("HPK_ATTEMPT", "j7-r0-a1")
    assert check_launch(tmp_path) == "j7-r0-a1"


def check_launch(folder):
    next(iter(loader(folder, None, rank=0, ranks=2)))
    return lines(folder)[1][0]["launch"]
