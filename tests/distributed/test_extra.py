"""`extra` over several ranks: each its own values, and parts of tensors that are divided among them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import extra_job, sharded_job  # noqa: E402
from tests.support.rows import full  # noqa: E402

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(("kind", "before", "after"), [("fsdp2", 2, 3), *full(("fsdp2", 2, 2), ("ddp", 2, 2))])
def test_an_average_in_extra_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, kind: str, before: int, after: int
) -> None:
    root = str(tmp_path / "root")
    saved = sharded_job.run(tmp_path, before, extra_job.job, kind, root, "save")
    found = sharded_job.run(tmp_path, after, extra_job.job, kind, root, "restore")
    for rank, answer in enumerate(found):
        assert answer["kept"] and answer["rank"] == (rank if rank < before else 0)
        assert answer["numbers"] == pytest.approx(saved[0]["numbers"], rel=1e-5, abs=1e-6)
        assert answer["unchanged"] and "does not fit" in answer["misfit"] and "last.bias" in answer["misfit"]
        if kind == "fsdp2":
            assert "divided among the ranks" in answer["refused"] and "before the restore" in answer["refused"]
            assert not answer["states"]  # and not the zeros that were made to be filled
