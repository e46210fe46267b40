"""Where training data should lie."""

from __future__ import annotations

import pytest

from hyperpod_kit.storage.plan import data, seeds
from hyperpod_kit.storage.plan.data import advise_data_location
from hyperpod_kit.storage.plan.facts import DataSet


def test_d7_many_small_images_that_training_consumes_fast_lie_on_fsx() -> None:
    images = DataSet(150e9, 1_281_167, 1_281_167, 20_000, text=False)
    found = advise_data_location(images)
    assert found.place == "fsx-lustre" and any("first byte" in text for text in found.why)


def test_d7_a_language_model_streams() -> None:
    assert advise_data_location(DataSet(100 * 2**30, 1000, 90e6, 3.3)).place == "stream"


def test_d7_many_small_text_files_are_merged_and_the_saving_is_said() -> None:
    found = advise_data_location(DataSet(570 * 1024 * 183_960, 183_960, 90e6, 3.3))
    assert found.place == "merge" and found.merged < found.stream / 20
    assert f"{found.stream:,.0f} s" in found.why[-1] and "1,024 of 100 MiB" in found.why[-1]


def test_one_file_that_is_read_faster_than_a_stream_lies_on_fsx() -> None:
    assert advise_data_location(DataSet(10e12, 1000, 1e6, 100, text=False)).place == "fsx-lustre"


def test_d9_the_published_comparison_comes_out_and_its_slip_is_seen() -> None:
    found = data.compare_published_streaming_times()
    for row in found:
        assert row.copied_fit == pytest.approx(row.copied, rel=1e-6)
        assert row.streamed_fit == pytest.approx(row.streamed, rel=1e-6)
        assert row.train == pytest.approx(27_281_250) and row.train > 9 * row.train_printed
    assert [round(row.difference, 4) for row in found] == [0.0566, 0.0014]
    assert data.fit_published_streaming_overhead().each == pytest.approx(0.083, abs=1e-3)
    assert data.fit_published_streaming_overhead().rate / 2**20 == pytest.approx(313.5, abs=0.5)
    for tool in ("s3 cp", "s5cmd"):
        for copy in (one for one in seeds.BULK if one.tool == tool):
            seconds = data.fit_published_copy_cost(tool).predict_seconds(copy.files, copy.files * copy.size)
            assert seconds == pytest.approx(copy.seconds, rel=1e-6)
