"""What ranks are taken to hold alike is compared, and a save whose ranks differ is refused in every way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.agent.flush import flush
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.distributed import replicas_job, sharded_job
from tests.support.rows import full

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("kind", "what"),
    [("experts", "model.bias"), *full(("local_sgd", "model.0.bias")), ("ddp_buffers", "model.1.running_mean")],
)
def test_ranks_that_differ_are_refused_with_the_name_and_the_way_out(tmp_path: Path, kind: str, what: str) -> None:
    root = str(tmp_path / "root")
    for answer in sharded_job.run(tmp_path, 2, replicas_job.differ, kind, root, {}):
        assert answer["states"] == ["failed"] * 3 and not answer["closed"]
        for reason in answer["reasons"]:
            assert reason.startswith(f"{what} has other bytes on rank 0 than on rank 1") and "1 of 2 ranks" in reason
            assert f"State(own=['{what}'])" in reason
    assert not any(entry.committed for entry in catalog.list_checkpoints(root))
    assert os.listdir(tmp_path / "shm") == []


@pytest.mark.parametrize("kind", ["equal", "ddp"])
def test_ranks_that_are_alike_are_saved(tmp_path: Path, kind: str) -> None:
    """DDP sends rank 0's buffers to all before each forward pass: between two they may differ."""
    root = str(tmp_path / "root")
    for answer in sharded_job.run(tmp_path, 2, replicas_job.differ, kind, root, {}):
        assert answer["states"] == ["durable"] * 3 and answer["closed"], answer


def test_without_comparison_the_rank_that_writes_is_believed(tmp_path: Path) -> None:
    for answer in sharded_job.run(
        tmp_path, 2, replicas_job.differ, "experts", str(tmp_path / "root"), {"compare": None}
    ):
        assert answer["states"] == ["durable"] * 3


def test_ranks_that_grow_apart_are_refused_at_the_next_comparison_and_at_each_one_after_it(tmp_path: Path) -> None:
    # seq 1 is the first save, 3 and 6 are compared by `every`: 4 and 5 pass, then nothing does.
    for states in sharded_job.run(tmp_path, 2, replicas_job.diverge_after, str(tmp_path / "root"), 3, 3, 8):
        assert states == ["durable"] * 5 + ["failed"] * 3


@pytest.mark.parametrize("end", ["start", *full("flush")])
def test_what_was_captured_before_the_agents_could_refuse_it_is_not_taken_either(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "root")
    assert [
        answer["state"] for answer in sharded_job.run(tmp_path, 2, replicas_job.killed_before_the_verdict, root)
    ] == ["captured"] * 2
    assert any(name.endswith(".img") for name in os.listdir(tmp_path / "shm"))
    if end == "flush":
        monkeypatch.setenv("HPK_SHM_DIR", str(tmp_path / "shm"))
        (outcome,) = flush.flush()
        assert outcome.attempt is None and outcome.removed and "ranks differ" in outcome.note, outcome
        assert [entry.name.step for entry in catalog.list_checkpoints(root) if entry.committed] == [0]
    for answer in sharded_job.run(tmp_path, 2, replicas_job.restore_plain, root):
        assert (answer["got"], answer["step"], answer["equal"]) == ("Restored", 0, True)
        if end == "start":
            ((attempt, why),) = answer["rejected"]
            assert attempt.startswith("seq-000002") and "rank 0 and rank 1 both hold differ" in why


@pytest.mark.parametrize(("kind", "after"), [("grown", 2), *full(("shrunk", 2), ("grown", 3), ("shrunk", 1))])
def test_tensors_that_a_fresh_start_does_not_have_yet_are_taken_from_the_shards_that_have_them(
    tmp_path: Path, kind: str, after: int
) -> None:
    """Which rank wrote what stands in the shards: a fresh start, whose state is another one, cannot work it out."""
    root = str(tmp_path / "root")
    (saved, _) = sharded_job.run(tmp_path, 2, replicas_job.history, kind, root, "save")
    for answer in sharded_job.run(tmp_path, after, replicas_job.history, kind, root, "restore"):
        assert answer["got"] == "Restored" and answer["rejected"] == []
        assert answer["metric"] == saved["metric"] and answer["holds"] == saved["holds"]
