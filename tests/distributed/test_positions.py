"""A checkpoint without one valid position in the data, the same for all ranks, does not count."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.data.index.build import build_index  # noqa: E402
from tests.distributed import position_job, sharded_job  # noqa: E402
from tests.support.rows import full  # noqa: E402

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("ranks", [*full(1), 2])
def test_all_ranks_go_back_to_the_newest_with_a_position(tmp_path: Path, ranks: int) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("".join(f"{n}\n" for n in range(200)))
    index = build_index([str(corpus)]).index.folder
    for answer in sharded_job.run(tmp_path, ranks, position_job.job, index, str(tmp_path / "root")):
        assert "or another order: seed: 1 then, 2 now" in answer["refused"] and "seed" in answer["refused"]
        assert answer["untouched"], "what does not fit is found before a tensor is written to"
        if ranks == 1:
            assert answer["step"] == 2, "one rank alone is always at one place"
            continue
        newest, middle = answer["rejected"]
        assert "rank 1: not a loader position" in newest and "'here'" in newest
        assert "loader: rank 0 is at 32 in the data, rank 1 at 40" in middle
        assert (answer["step"], answer["position"], answer["weight"]) == (0, 24, 0.0)
