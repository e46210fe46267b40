"""What a loop over a loader counts, and what becomes of a loader that somebody takes apart."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from hyperpod_kit.data import ElasticLoader
from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from hyperpod_kit.errors import DataError

COUNT, BATCH = 40, 4


def loader(**options):
    return ElasticLoader(range(COUNT), BATCH, **{"seed": 2, **options})


def flat(batches):
    return [number for batch in batches for number in batch.tolist()]


WHOLE = flat(loader())


@pytest.mark.parametrize("workers", [0, 2])
def test_to_look_at_a_batch_moves_nothing(workers, tmp_path):
    looked = loader(num_workers=workers, ledger=tmp_path)
    first = next(iter(looked))
    assert looked.position == 0 and first.tolist() == WHOLE[:BATCH]
    held = iter(looked)
    next(held)
    assert looked.position == BATCH  # while a loop holds it
    del held
    assert looked.position == 0
    assert flat(looked) == WHOLE and looked.position == COUNT
    found = check_sample_log(tmp_path)
    assert found.is_exactly_once and found.steps == COUNT // BATCH


def test_a_batch_counts_when_the_next_is_asked_for():
    left = loader()
    for number, _ in enumerate(left, 1):
        if number == 5:
            break
    assert left.position == 4 * BATCH
    assert flat(left) == WHOLE[4 * BATCH :]


@pytest.mark.parametrize("report", ["state_dict", "trained"])
def test_a_batch_counts_when_its_step_is_reported(report, caplog):
    caplog.set_level("WARNING", "hyperpod_kit.data")
    left = loader()
    for number, _ in enumerate(left, 1):
        if number == 5:
            getattr(left, report)()
            break
    assert left.position == 5 * BATCH and not caplog.records
    assert flat(left) == WHOLE[5 * BATCH :]


def test_a_batch_that_comes_again_is_told_once(caplog):
    caplog.set_level("WARNING", "hyperpod_kit.data")
    left = loader()
    next(iter(left))
    assert not caplog.records  # somebody looked
    for _ in range(2):
        flat(itertools.islice(left, 3))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "comes again: call loader.trained()" in caplog.text


@pytest.mark.parametrize("last", ["pad", "drop", "repeat"])
def test_epochs_of_a_loop_that_counts_by_itself(last):
    """It takes as many batches as there are, and asks for none behind the last one."""
    counted = ElasticLoader(range(43), BATCH, seed=2, last=last)
    whole = flat(ElasticLoader(range(43), BATCH, seed=2, last=last))
    found = flat(itertools.islice(counted, len(counted)))
    assert found == whole and counted.epoch == 1
    assert len(flat(itertools.islice(counted, len(counted)))) == len(counted) * BATCH


@pytest.mark.parametrize("workers", [0, 2])
def test_of_two_iterators_the_older_one_raises(workers):
    both = loader(num_workers=workers)
    older = iter(both)
    next(older)
    younger = iter(both)
    assert next(younger).tolist() == WHOLE[:BATCH]
    with pytest.raises(DataError, match="another iterator of this ElasticLoader"):
        next(older)
    assert flat(younger) == WHOLE[BATCH:]
    pairs = loader()
    with pytest.raises(DataError, match="another iterator"):
        list(zip(pairs, pairs, strict=False))


def test_an_iterator_ends_where_another_epoch_is_set_under_it():
    moved = loader()
    older = iter(moved)
    next(older)
    moved.set_epoch(1)
    assert list(older) == [] and moved.position == COUNT


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_has_returned_a_batch_raises_where_a_position_is_restored(workers):
    """Ended without a word, it would be a run of no step at all, which exits 0."""
    saved = loader()
    flat(itertools.islice(saved, 3))
    state, rest = saved.state_dict(), flat(saved)
    restored = loader(num_workers=workers)
    older = iter(restored)
    next(older)
    restored.load_state_dict(state)
    with pytest.raises(DataError, match="was restored to 8 after this iterator had returned a batch"):
        next(older)
    assert restored.position == state["position"]
    assert flat(restored) == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_was_made_before_the_restore_begins_at_the_position(workers):
    """prime-rl #3332: one that has forked its workers already would go through the data from its beginning again."""
    saved = loader()
    flat(itertools.islice(saved, 3))
    state, rest = saved.state_dict(), flat(saved)
    restored = loader(num_workers=workers)
    iterator = iter(restored)
    restored.load_state_dict(state)
    assert flat(iterator) == rest and restored.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_after_a_resume_are_whole(workers):
    """datasets #7447: with persistent workers they were as short as the rest of the first."""
    saved = loader()
    flat(itertools.islice(saved, 7))
    state, rest = saved.state_dict(), flat(saved)
    restored = loader(num_workers=workers, **({"persistent_workers": True} if workers else {}))
    restored.load_state_dict(state)
    whole = loader()
    flat(whole)
    assert flat(restored) == rest
    assert [flat(restored) for _ in range(2)] == [flat(whole) for _ in range(2)]


def test_a_limit_gives_equal_epochs_where_epochs_are_named():
    """As Lightning names them: by the sampler, from the epoch on that it is in itself."""
    limited = loader()
    found = []
    for epoch in range(7, 11):
        limited.sampler.set_epoch(epoch)
        found.append(flat(itertools.islice(limited, 7)))
    whole = loader()
    assert found == [flat(whole)[: 7 * BATCH] for _ in range(4)]


def test_an_epoch_that_is_named_before_anything_was_trained_on_moves_nothing():
    """As Fabric names one more at each iterator: also at one that somebody looks at a batch by."""
    looked = loader()
    for number in range(3):
        looked.sampler.set_epoch(number)
        assert next(iter(looked)).tolist() == WHOLE[:BATCH]
    looked.sampler.set_epoch(3)
    assert flat(looked) == WHOLE
    looked.load_state_dict({**looked.state_dict(), "position": 3 * COUNT + 8})
    looked.sampler.set_epoch(0)
    assert looked.position == 3 * COUNT + 8


def others(whole):
    """What programs make of a loader's parts."""
    accelerate = pytest.importorskip("accelerate.data_loader")
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    yield DataLoader(whole.dataset, batch_sampler=whole.batch_sampler)
    yield DataLoader(whole.dataset, batch_sampler=whole.batch_sampler, num_workers=1)
    yield DataLoader(whole.dataset, sampler=whole.sampler, batch_size=BATCH)
    yield stateful(whole.dataset, batch_sampler=whole.batch_sampler)
    yield accelerate.prepare_data_loader(whole)
    yield accelerate.prepare_data_loader(whole, num_processes=2, process_index=1)
    yield accelerate.skip_first_batches(whole, 2)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_one_that_was_taken_apart_refuses_its_first_batch():
    whole = loader()
    for other in others(whole):
        with pytest.raises(DataError, match="rebuilt"):
            next(iter(other))
    assert flat(whole) == WHOLE


def test_what_others_ask_before_they_take_one_apart():
    whole = loader()
    assert isinstance(whole, DataLoader) and isinstance(whole.sampler, DistributedSampler)
    batches: Any = whole.batch_sampler
    assert len(whole.sampler) == COUNT and len(batches) == len(whole) == 10
    assert batches.batch_size == BATCH and not batches.drop_last
    sampler = whole.sampler
    del whole
    sampler.set_epoch(3)  # of a loader that is gone
    assert len(sampler) == 0


def test_accelerate_hands_it_back_and_knows_its_last_batch():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    whole = loader()
    given = accelerator.prepare(whole)
    assert given is whole
    ends = []
    for batch in given:
        assert batch.device.type == "cpu" and accelerator.gradient_state.in_dataloader
        ends.append(accelerator.gradient_state.end_of_dataloader)
    assert ends == [False] * 9 + [True] and not accelerator.gradient_state.in_dataloader
    next(iter(given))
    assert not accelerator.gradient_state.in_dataloader and given.position == COUNT


def test_its_data_is_pickled_without_it():
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert flat(itertools.islice(loader(**options), 2)) == WHOLE[: 2 * BATCH]
