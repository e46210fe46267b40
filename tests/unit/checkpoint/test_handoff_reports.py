"""What nodes that cannot talk to each other leave beside their shards: little of each rank, and what is alike once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.checkpoint.agent.flush import flush_captures
from hyperpod_kit.checkpoint.agent.reports import shard_report
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError
from tests.unit.checkpoint.test_report_texts import report

WORLD = 3
ATTEMPT = "seq-000001.step-0000000001.e1-abcdef"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / ATTEMPT).mkdir()
    return open_store(str(tmp_path))


def texts(folder: Path) -> List[Path]:
    return sorted(path for path in (folder / ATTEMPT).iterdir() if path.name.startswith("text-"))


def test_all_reports_together_are_what_the_ranks_have(store: Store, tmp_path: Path) -> None:
    reports = {rank: report(rank, WORLD, 1) for rank in range(WORLD)}
    for rank in (2, 0, 1):
        assert flush_captures.read_reports(store, ATTEMPT, WORLD) is None
        flush_captures.write_report(store, ATTEMPT, rank, reports[rank])
    found = flush_captures.read_reports(store, ATTEMPT, WORLD)
    assert found == {rank: shard_report.to_shard_report(one) for rank, one in reports.items()}
    assert texts(tmp_path) and all(layout.is_kit_checkpoint_file(path.name) for path in texts(tmp_path))
    alike = sum(path.stat().st_size for path in texts(tmp_path))
    for rank in range(WORLD):
        assert (tmp_path / ATTEMPT / layout.report_file(rank)).stat().st_size < alike


def test_a_text_that_was_torn_is_written_anew_and_a_damaged_one_is_refused(store: Store, tmp_path: Path) -> None:
    flush_captures.write_report(store, ATTEMPT, 0, report(0, 2, 1))
    torn = texts(tmp_path)[0]
    whole = torn.read_bytes()
    torn.chmod(0o600)
    os.truncate(torn, 7)
    flush_captures.write_report(store, ATTEMPT, 1, report(1, 2, 1))
    assert torn.read_bytes() == whole and flush_captures.read_reports(store, ATTEMPT, 2) is not None

    torn.chmod(0o600)
    torn.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CheckpointError, match="a text of it is damaged"):
        flush_captures.read_reports(store, ATTEMPT, 2)
    torn.unlink()
    with pytest.raises(FileNotFoundError):
        flush_captures.read_reports(store, ATTEMPT, 2)
