"""torchtitan's debug model on another number of ranks, past a flipped byte; and what it writes itself besides.
Two ranks under SIGKILL: test_frameworks.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.repository.records import catalog
from tests.support.capabilities import require
from tests.support.damage import flip
from tests.unit.job import killed
from tests.unit.job.conftest import Job
from tests.unit.job.test_frameworks import IMPORTED

OTHER_RANKS = ("--checkpoint.exclude_from_loading", "dataloader")
"""torchtitan brings the place of its loader to no other number of ranks."""


@pytest.mark.full
@pytest.mark.timeout(900)
def test_it_goes_on_on_one_rank_past_a_flipped_byte_and_leaves_weights_of_its_own(job: Job, tmp_path: Path) -> None:
    require("torchtitan")
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    def train(ranks: int, last: int, *words: str) -> int:
        job.events.clear()
        given = ("--steps", str(last), "--save-every", "1", *words)
        imported = IMPORTED["torchtitan"]
        return killed.train(job, "torchtitan_llama.py", tmp_path, ranks=ranks, words=given, imported=imported)

    assert train(2, 5) == 0
    newest, *_ = catalog.list_checkpoints(str(job.root))
    assert newest.name is not None and newest.name.step == 5
    flip(next((job.root / newest.checkpoint_id).glob("shard-*")), -5000)
    for path in tmp_path.glob("losses-*.txt"):  # one rank has other batches
        path.unlink()
    assert train(1, 6, *OTHER_RANKS, "--checkpoint.last_save_model_only") == 0
    (restored,) = job.said("restored")
    assert restored["tier"] == "storage" and restored["step"] < 5
    assert list(killed.losses(tmp_path)["losses-0.txt"])[-1] == 6

    # torchtitan's own file of the last step, read by torch alone.
    dcp_to_torch_save(tmp_path / "checkpoint" / "step-6", tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=True)
    expected = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert expected.keys() <= plain.keys() and all(torch.equal(value, plain[name]) for name, value in expected.items())
