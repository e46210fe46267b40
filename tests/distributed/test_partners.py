"""A node is lost with its memory: its ranks go on from the copies in a partner's, and storage is not needed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.records import catalog
from tests.distributed import partner_job, sharded_job

pytestmark = pytest.mark.distributed


def run(folder: Path, function: Any, *arguments: Any) -> list[Any]:
    return sharded_job.run(folder, 3, function, str(folder), str(folder / "root"), *arguments, timeout=180.0)


def files(folder: Path) -> list[str]:
    return [name for _, _, names in os.walk(folder) for name in names]


@pytest.mark.full
@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.full), 1])
def test_one_lost_node_of_three_is_restored_from_its_partners_memory(tmp_path: Path, lost: int) -> None:
    """Nothing was ever on storage, so nothing could come from there."""
    saved = run(tmp_path, partner_job.die, 4, 0)
    assert [entry for entry in catalog.list_checkpoints(str(tmp_path / "root")) if entry.committed] == []
    shutil.rmtree(partner_job.node(str(tmp_path), lost))
    found = run(tmp_path, partner_job.come_back)
    for rank, answer in enumerate(found):
        assert (answer["kind"], answer["tier"], answer["step"]) == ("Restored", "memory", 3)
        assert answer["extra"] == {"rank and step": [rank, 3]}
    assert found[0]["holds"] == saved[0]["holds"]
    assert [files(partner_job.node(str(tmp_path), rank)) for rank in range(3)] == [[], [], []]


@pytest.mark.full
def test_a_lost_node_and_its_partner_fall_back_to_storage(tmp_path: Path) -> None:
    run(tmp_path, partner_job.die, 3, 1)
    for lost in (1, 2):
        shutil.rmtree(partner_job.node(str(tmp_path), lost))
    found = run(tmp_path, partner_job.come_back)
    assert [(answer["tier"], answer["step"]) for answer in found] == [("storage", 0)] * 3


@pytest.mark.full
def test_ranks_that_come_back_on_each_others_nodes_take_their_captures_along(tmp_path: Path) -> None:
    saved = run(tmp_path, partner_job.die, 2, 0)
    nodes = [partner_job.node(str(tmp_path), rank) for rank in range(3)]
    nodes[0].rename(tmp_path / "away")
    nodes[1].rename(nodes[0])
    (tmp_path / "away").rename(nodes[1])
    found = run(tmp_path, partner_job.come_back)
    assert [(answer["tier"], answer["step"], answer["extra"]["rank and step"]) for answer in found] == [
        ("memory", 1, [rank, 1]) for rank in range(3)
    ]
    assert found[0]["holds"] == saved[0]["holds"]
