"""A job's time for TensorBoard: what the file holds, read by its own bytes, and by TensorBoard itself where it is."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.errors import Unreachable
from hyperpod_kit.job import cli
from hyperpod_kit.job.goodput import scalars
from hyperpod_kit.job.goodput.cause import TimeCause
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.scalars import ScalarPoint
from hyperpod_kit.job.goodput.time_table import table_of
from tests.unit.job.goodput.histories import History
from tests.unit.job.goodput.test_histories import ledger_of


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / ".hpk").mkdir()
    return History(tmp_path / ".hpk", 13, submitted=1.7e9).play()


def records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_the_checksum_is_the_one_of_the_format() -> None:
    assert scalars.crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4


def test_a_record_is_an_event_with_its_scalars() -> None:
    first, second = records(scalars.encoded([ScalarPoint(2.0, 300, {"goodput": 0.5})], first_record_time=1.0))
    assert first == b"\x09" + struct.pack("<d", 1.0) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x07goodput\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert second == b"\x09" + struct.pack("<d", 2.0) + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary


def test_the_last_point_is_what_job_status_shows_and_every_point_adds_up(history: History) -> None:
    told = ledger_of(history)
    found, table = scalars.points(told), table_of(told.pieces)
    assert len(found) == scalars.POINTS and found[-1].time == told.pieces[-1].end
    assert found[-1].values["goodput"] == pytest.approx(table.goodput)
    for cause in TimeCause:
        assert found[-1].values[f"time/{cause.value}"] == pytest.approx(
            table.seconds.get(cause, 0.0) / table.total_seconds
        )
    for point in found:
        assert sum(share for tag, share in point.values.items() if tag.startswith("time/")) == pytest.approx(1.0)
    steps = [point.step for point in found]
    assert steps == sorted(steps) and steps[-1] > 0 and found[-1].values[scalars.STEP_TIME] > 0
    assert scalars.points(JobTime("7")) == []


def test_the_command_writes_one_file_a_job_and_a_second_call_replaces_it(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["status", "--root", str(history.state.parent), "--tensorboard", str(tmp_path / "board")]
    names = []
    for _ in range(2):
        assert cli.main(words) == 0
        (path,) = (tmp_path / "board" / "7").iterdir()
        assert f"{path} written" in capsys.readouterr().out
        names.append(path.name)
    assert names[0] < names[1], "TensorBoard goes on with the later name"
    (tmp_path / "file").write_text("")
    words[-1] = str(tmp_path / "file" / "board")
    with pytest.raises(Unreachable, match=r"cannot write scalars to .*: Not a directory"):
        cli.main(words)


def test_a_name_of_a_job_that_others_wrote_leads_nowhere_else(tmp_path: Path) -> None:
    path = scalars.replace_event_file_of_job(str(tmp_path / "board"), JobTime("../../elsewhere"), now=1.7e9)
    assert os.path.dirname(path) == str(tmp_path / "board" / "______elsewhere")


@pytest.mark.needs("tensorboard")
def test_tensorboard_reads_the_scalars_and_takes_a_new_file_for_the_old_one(history: History, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = ledger_of(history)
    scalars.replace_event_file_of_job(str(tmp_path), told, now=1.8e9)
    board = EventAccumulator(str(tmp_path / "7"))
    for now in (None, 1.8e9 + 60):
        if now is not None:
            scalars.replace_event_file_of_job(str(tmp_path), told, now)
        board.Reload()
        assert {"goodput", scalars.STEP_TIME, "time/lasted", "time/unknown"} <= set(board.Tags()["scalars"])
        shown = board.Scalars("goodput")
        assert shown[-1].value == pytest.approx(table_of(told.pieces).goodput, abs=1e-6)
        assert shown[-1].wall_time == told.pieces[-1].end
