"""The published tables from one rate each, and the file that a bench writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import Absent, ConfigError
from hyperpod_kit.storage.plan import calibration, seeds
from hyperpod_kit.storage.plan.calibration import Calibration, Sample

WORST = {
    ("fsx-lustre", "torch-save"): 0.8,
    ("fsx-lustre", "dcp"): 4.1,
    ("mountpoint-s3", "torch-save"): 2.5,
    ("nvme", "torch-save"): 6.6,
    ("nvme", "dcp"): 0.7,
    ("nvme-to-s3", "torch-save"): 3.9,
    ("nvme-to-s3", "dcp"): 3.3,
}
"""Percent, by storage and writer."""


def test_d1_every_cell_of_the_published_table_is_within_7_percent() -> None:
    found = calibration.compare_samples_with_predictions(seeds.CHECKPOINTS)
    assert len(found) == 14 and max(abs(one.relative_error) for one in found) < 0.07
    for key, percent in WORST.items():
        kin = [one for one in found if (one.sample.storage, one.sample.writer) == key]
        assert max(abs(one.relative_error) for one in kin) * 100 == pytest.approx(percent, abs=0.06)
        rate = seeds.CHECKPOINTS.fitted_rate(*key)
        assert rate is not None and rate.error * 100 == pytest.approx(percent, abs=0.06)


def test_d2_each_cell_is_predicted_from_the_others_within_15_percent() -> None:
    found = [
        one.leave_one_out_relative_error for one in calibration.compare_samples_with_predictions(seeds.CHECKPOINTS)
    ]
    assert all(error is not None and abs(error) < 0.15 for error in found)


def test_a_chain_of_nvme_and_upload_is_the_sum_of_its_cells() -> None:
    predicted = {
        (one.sample.label, one.sample.storage): one.predicted
        for one in calibration.compare_samples_with_predictions(seeds.CHECKPOINTS)
    }
    for name, printed in (("Model (Full)", 195.54), ("Optimizer (Sharded)", 98.94)):
        assert predicted[(name, "nvme")] + predicted[(name, "nvme-to-s3")] == pytest.approx(printed, rel=0.07)


def test_what_was_measured_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    calibration.save(seeds.CHECKPOINTS, path)
    assert calibration.load(path).samples == seeds.CHECKPOINTS.samples


def test_an_empty_calibration_has_no_rate_and_no_cells() -> None:
    empty = Calibration("nothing", ())
    assert empty.fitted_rate("nvme", "dcp") is None and calibration.compare_samples_with_predictions(empty) == []


def test_a_rate_is_each_writers_own() -> None:
    rate = calibration.fit_rate([Sample("x", "dcp", 8, 2, 80e9, 10), Sample("x", "dcp", 8, 2, 80e9, 20, stall=2.0)])
    assert rate is not None and rate.writers == 4 and rate.stall == 5e9
    assert rate.predict_seconds(80e9, 16) == pytest.approx(80e9 / (16 * 0.75e9))
    assert rate.error == pytest.approx(1 / 3)


GOOD = {"storage": "x", "writer": "dcp", "writers": 8, "nodes": 1, "size": 1e9, "seconds": 2.0}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", "is not a calibration"),
        ("[]", "is not a calibration"),
        ("{}", "expected hpk-storage-calibration 1"),
        ({"samples": {}}, "`samples` is not a list"),
        ({"samples": ["x"]}, r"samples\[0\] is not an object"),
        ({"samples": [{**GOOD, "seconds": 0}]}, r"samples\[0\].seconds is 0"),
        ({"samples": [{**GOOD, "seconds": True}]}, "seconds is True"),
        ({"samples": [{**GOOD, "size": -1}]}, "size is -1"),
        ({"samples": [{**GOOD, "size": "1"}]}, "size is '1'"),
        ({"samples": [{**GOOD, "storage": None}]}, "storage is None"),
        ({"samples": [{**GOOD, "nodes": 9}]}, "8 writers on 9 nodes"),
        ({"samples": [{**GOOD, "stall": 0}]}, "stall is 0"),
        ({"version": 2}, "expected hpk-storage-calibration 1"),
    ],
)
def test_a_file_that_is_none_is_named_with_what_is_wrong(tmp_path: Path, body: Any, words: str) -> None:
    path = tmp_path / "calibration.json"
    text = body if isinstance(body, str) else json.dumps({"format": calibration.FORMAT, "version": 1, **body})
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        calibration.load(path)


def test_a_file_that_is_not_there_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="there is no") as found:
        calibration.load(tmp_path / "none.json")
    assert found.value.hint is not None and "storage bench" in found.value.hint
