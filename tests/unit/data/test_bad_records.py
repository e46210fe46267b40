"""Bad records that are met in training: by the rule they are passed over and counted, or raise."""

from __future__ import annotations

import json
import logging

import numpy
import pytest

from hyperpod_kit.data import (
    ElasticLoader,
    IndexedDataset,
    MixDataset,
    PackedDataset,
    ShuffledOrder,
    lengths_of,
    order_of,
)
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from hyperpod_kit.errors import BadRecord

BAD = (5, 6, 19)


@pytest.fixture
def data(tmp_path):
    """Twenty records, three of which are none."""
    lines = ["{" if n in BAD else json.dumps({"n": n}) for n in range(20)]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(lines))
    return IndexedDataset(build_index([str(tmp_path / "corpus")]).index, transform=lambda sample: sample["n"])


@pytest.mark.parametrize("workers", [0, 2])
def test_in_the_place_of_a_bad_one_comes_the_next_good_one(data, tmp_path, workers, caplog):
    def run(**more):
        return ElasticLoader(data, 4, collate_fn=list, on_bad="skip", num_workers=workers, epochs=1, **more)

    with caplog.at_level(logging.WARNING, "hyperpod_kit.data"):
        loader = run(ledger=tmp_path / "ledger", launch="one")
        found = list(loader)
    order = order_of(data, 0)
    wanted = order.at(0, numpy.arange(20)).tolist()
    stands_for = {5: 7, 6: 7, 19: 0}
    assert [one for batch in found for one in batch] == [stands_for.get(n, n) for n in wanted]
    assert loader.bad_records == 3 and "a.jsonl, at " in caplog.text and "(sample 19, bad record " in caplog.text
    report = check_sample_log(tmp_path / "ledger")
    assert report.is_exactly_once and report.passed_over == BAD and report.epochs[0].once == 20
    later = run()
    later.load_state_dict({**later.state_dict(), "position": 8})
    assert list(later) == found[2:], "the same after a resume"


def test_without_the_rule_it_raises(data):
    with pytest.raises(BadRecord, match=r"a\.jsonl, at \d+ \(sample \d+\)"):
        list(ElasticLoader(data, 4, collate_fn=list))


def test_too_many_are_an_error(data):
    with pytest.raises(BadRecord, match="this is bad record 3, and at most 2 are allowed"):
        list(ElasticLoader(data, 4, collate_fn=list, on_bad="skip", most_bad=2))


def test_data_that_is_all_bad_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("{\n" * 10)
    data = IndexedDataset(build_index([str(tmp_path)]).index)
    with pytest.raises(BadRecord, match="none of the 10 samples after it"):
        list(ElasticLoader(data, 2, collate_fn=list, on_bad="skip"))


def test_a_transform_refuses_records_by_the_same_rule(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")

    def short(line):
        if len(line) > 3:
            raise BadRecord(f"{line} is too long")
        return line

    data = IndexedDataset(build_index([str(tmp_path)]).index, transform=short)
    loader = ElasticLoader(data, 3, collate_fn=sorted, on_bad="skip")
    assert list(loader) == [["one", "one", "two"]] and loader.bad_records == 1


def test_in_a_mix_too(data):
    mixed = MixDataset({"a": data, "b": data})
    assert sorted(len(batch) for batch in ElasticLoader(mixed, 8, collate_fn=list, on_bad="skip")) == [8] * 5


def test_windows_are_counted_without_bad_documents(data):
    with pytest.raises(BadRecord):
        lengths_of(data, encode, "pairs", processes=1)
    lengths = lengths_of(data, encode, "pairs", processes=1, on_bad="skip")
    assert [n for n, length in enumerate(lengths) if not length] == list(BAD)
    order = ShuffledOrder(20, 1, 16)
    packed = PackedDataset(data, encode, lengths, window=2, order=order)
    assert sorted(window[0] for window in packed.__getitems__(range(17))) == [n for n in range(20) if n not in BAD]
    with pytest.raises(ValueError, match="lengths_of"):
        ElasticLoader(packed, 2, order=packed.windows, on_bad="skip")


def encode(number):
    return [number, number]
