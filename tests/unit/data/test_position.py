"""Every sample once an epoch, under any sequence of numbers of ranks and sizes of batches; pure arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.data.loading.position import Last
from hyperpod_kit.data.loading.sampler import ElasticBatchSampler
from hyperpod_kit.data.order.order import ShuffledOrder
from tests.support.examples import examples

GROUPS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 7), st.integers(0, 12)), min_size=1, max_size=12)


def received(samples, groups, last, epochs):
    """What ranks receive over `epochs` epochs: (epoch, sample) -> how often, and fillers; ranks, size and the steps
    until the next restart are drawn from `groups`, and each restart goes on at the position of the last one."""
    order = ShuffledOrder(samples, 5, block=7, lanes=6)
    counted: Counter[Any] = Counter()
    fillers, position, turn = 0, 0, 0
    while position < epochs * samples:
        ranks, size, steps = groups[turn % len(groups)]
        turn += 1
        if last is Last.DROP and ranks * size > samples:
            ranks, size = 1, 1
        samplers = [ElasticBatchSampler(order, size, rank=rank, ranks=ranks, last=last) for rank in range(ranks)]
        streams = [sampler.rank_batches_until_epoch_end(position) for sampler in samplers]
        lots = [list(stream) for stream in streams]
        assert len({len(lot) for lot in lots}) == 1, "all ranks have the same number of steps"
        assert len(lots[0]) == samplers[0].course.steps_to_epoch_end(position, ranks * size)
        if not lots[0]:
            position = (position // samples + 1) * samples
        for each in list(zip(*lots, strict=True))[: steps + 1]:
            assert len({batch.step for batch in each}) == 1
            for rank, batch in enumerate(each):
                assert len(batch.samples) == size
                fillers += batch.fillers
                real = batch.samples[: size - batch.fillers].tolist()
                places = samplers[0].course.positions_of_rank(batch.step, rank, ranks)
                counted.update(zip((places[: len(real)] // samples).tolist(), real, strict=True))
            position = each[0].step.after
    return counted, fillers


@examples(50)
@given(st.integers(1, 200), GROUPS)
def test_padded_epochs_have_every_sample_once(samples, groups):
    counted, _ = received(samples, groups, Last.PAD, 2)
    assert counted == {(epoch, sample): 1 for epoch in range(2) for sample in range(samples)}


@examples(50)
@given(st.integers(1, 200), GROUPS)
def test_repeated_epochs_have_every_sample_once(samples, groups):
    counted, fillers = received(samples, groups, Last.REPEAT, 2)
    assert fillers == 0
    assert {one: count for one, count in counted.items() if one[0] < 2} == {
        (epoch, sample): 1 for epoch in range(2) for sample in range(samples)
    }


@examples(50)
@given(st.integers(1, 200), GROUPS)
def test_dropped_samples_are_fewer_than_a_step_and_none_comes_twice(samples, groups):
    counted, fillers = received(samples, groups, Last.DROP, 2)
    assert fillers == 0 and set(counted.values()) <= {1}
    for epoch in range(2):
        assert samples - sum(one[0] == epoch for one in counted) < max(r * s for r, s, _ in groups)


@pytest.mark.parametrize("last, steps", [(Last.DROP, 3), (Last.PAD, 4), (Last.REPEAT, 4)])
def test_length_is_the_epochs_whole_number_of_steps(last, steps):
    sampler = ElasticBatchSampler(ShuffledOrder(26), 2, rank=1, ranks=4, last=last)
    assert len(sampler) == steps == len(list(sampler))
    sampler.position = 8
    assert len(sampler) == steps and len(list(sampler)) == steps - 1


def test_an_epoch_without_a_step_is_refused_where_it_would_be_empty():
    with pytest.raises(ValueError, match="no step of 12"):
        ElasticBatchSampler(ShuffledOrder(10), 3, rank=0, ranks=4, last=Last.DROP)


def test_fillers_are_the_epochs_first_samples():
    order = ShuffledOrder(10, 1)
    first = order.at(0, np.arange(6)).tolist()
    batches = [
        list(ElasticBatchSampler(order, 4, rank=rank, ranks=2, last=Last.PAD).rank_batches_until_epoch_end(0))[-1]
        for rank in (0, 1)
    ]
    assert [batch.fillers for batch in batches] == [3, 3]
    assert sorted(batches[0].samples[1:].tolist() + batches[1].samples[1:].tolist()) == sorted(first)
