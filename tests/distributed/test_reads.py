"""A cold restore reads each byte of storage once for all ranks together, however the ranks divide the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed import reads_job, sharded_job

pytestmark = pytest.mark.distributed


def run(folder: Path, world: int, function: Any, *arguments: Any) -> list[Any]:
    return sharded_job.run(folder, world, function, *arguments, timeout=240.0)


def once(folder: Path, found: list[Any], most: float = 1.01) -> None:
    """Headers and digests at the ends of files are read in pages, so a little more than the bytes of the shards."""
    unique = sum(path.stat().st_size for path in (folder / "root").rglob("*.safetensors"))
    assert unique <= sum(answer["shards"] for answer in found) <= most * unique


@pytest.mark.full
def test_two_ranks_read_each_byte_once_and_none_that_nobody_wants(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = run(tmp_path, 2, reads_job.save, "ddp", root)
    found = run(tmp_path, 2, reads_job.restores, ["ddp", "fsdp2"], root)
    for kind in ("ddp", "fsdp2"):
        answers = [answer[kind] for answer in found]
        assert [answer["holds"] for answer in answers] == saved, kind
        once(tmp_path, answers)
    (sharded,) = {answer["fsdp2"]["received"] <= answer["fsdp2"]["needed"] for answer in found}
    assert sharded, "a rank is sent what it wants of a chunk, not the chunk"


@pytest.mark.full
def test_what_does_not_arrive_as_it_was_sent_is_read_from_storage(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = run(tmp_path, 2, reads_job.save, "ddp", root)
    found = run(tmp_path, 2, reads_job.restores, ["ddp", "fsdp2"], root, 0)
    for kind in ("ddp", "fsdp2"):
        answers = [answer[kind] for answer in found]
        assert [answer["holds"] for answer in answers] == saved, kind
        assert answers[0]["flipped"] == 1, "else this proves nothing"
        assert answers[0]["shards"] > answers[1]["shards"]


@pytest.mark.full
@pytest.mark.parametrize("world", [4, 16])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "hsdp"])
def test_many_ranks_of_every_layout(tmp_path: Path, kind: str, world: int) -> None:
    root = str(tmp_path / "root")
    saved = run(tmp_path, world, reads_job.save, kind, root)
    others = [one for one in ("ddp", "fsdp2", "hsdp") if one != kind]
    found = run(tmp_path, world, reads_job.restores, [kind, *others], root)
    fewer = run(tmp_path, world // 2, reads_job.restores, ["ddp", "fsdp2"], root)
    for answers, name in [*((found, one) for one in (kind, *others)), (fewer, "ddp"), (fewer, "fsdp2")]:
        assert {str(answer[name]["holds"]) for answer in answers} == {str(saved[0])}, name
        once(tmp_path, [answer[name] for answer in answers], 1.05 if world == 16 else 1.02)


@pytest.mark.full
def test_where_handing_on_is_slow_the_rest_is_read(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    saved = run(tmp_path, 2, reads_job.save, "ddp", root)
    found = run(tmp_path, 2, reads_job.restore_slowly, root)
    assert [answer["holds"] for answer in found] == saved
    assert sum(answer["shards"] for answer in found) > 1.2 * max(answer["needed"] for answer in found)
