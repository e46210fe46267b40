"""What two checkpoints have differently, found in blocks. Of runs with other numbers of ranks: tests/distributed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import Manager, State, cli
from hyperpod_kit.checkpoint.codec.dtypes import TYPES
from hyperpod_kit.checkpoint.diffing import compare
from hyperpod_kit.checkpoint.diffing.compare import blocks
from hyperpod_kit.checkpoint.diffing.items import ItemDifference
from hyperpod_kit.checkpoint.diffing.items import compare as compare_items
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import Absent, CheckpointError, UsageError
from tests.support.damage import flip

NAN, INF = math.nan, math.inf


def save(root: Path, *states: dict[str, Any]) -> list[str]:
    """A checkpoint of each `extra`; the attempts, oldest first."""
    with Manager(root, keep=None) as manager:
        for step, extra in enumerate(states):
            assert manager.save(step, State(extra=extra, rng=False), on_busy="wait").wait("durable", 60)
    return [entry.checkpoint_id for entry in reversed(catalog.list_checkpoints(str(root)))]


def diff(root: Path, before: str, after: str) -> compare.CheckpointDiff:
    store = open_store(str(root))
    return compare.diff(compare.CheckpointAt(store, before), compare.CheckpointAt(store, after))


def short(made: compare.CheckpointDiff) -> dict[str, ItemDifference]:
    return {name.rpartition("extra.")[2]: difference for name, difference in made.changed.items()}


def test_what_was_added_removed_reshaped_and_changed(shm: Path, tmp_path: Path) -> None:
    ones = torch.ones(3, 5)
    other = ones.clone()
    other[1, 2], other[2, 4] = 3.0, 0.5
    before, after = save(
        tmp_path,
        {"a": ones, "b": ones.clone(), "gone": ones.clone(), "s": ones.clone(), "t": ones.clone(), "n": {"lr": 0.1}},
        {"a": ones, "b": other, "new": ones.clone(), "s": ones.T.clone(), "t": ones.half(), "n": {"lr": 0.2}},
    )
    made = diff(tmp_path, before, after)
    assert short(made) == {"b": ItemDifference(15, 2, 2.0, 2 / 3)} and made.equal == 1 and not made.is_empty
    assert [name.rpartition(".")[2] for name in (*made.added, *made.removed)] == ["new", "gone"]
    assert {name.rpartition(".")[2]: after.shape for name, (_, after) in made.reshaped.items()} == {
        "s": (5, 3),
        "t": (3, 5),
    }
    assert [path.rpartition("extra.")[2] for path in made.values] == ["n.lr"]
    assert diff(tmp_path, before, before).is_empty


def test_a_tensor_that_is_tied_in_one_of_them_is_compared(shm: Path, tmp_path: Path) -> None:
    ones = torch.ones(3)
    before, after = save(tmp_path, {"a": ones, "b": ones}, {"a": ones, "b": ones + 1})
    for pair in ((before, after), (after, before)):
        made = diff(tmp_path, *pair)
        assert {name: found.changed for name, found in short(made).items()} == {"b": 3}
        assert made.equal == 1 and not made.added and not made.removed


@pytest.mark.parametrize(
    ("dtype", "one", "two", "difference"),
    [
        (torch.float32, [1.0, NAN], [1.0, NAN], (0, 0.0, 0.0)),
        (torch.float32, [1.0, 2.0], [1.0, NAN], (1, INF, INF)),
        (torch.float32, [INF, 2.0], [1.0, 2.0], (1, INF, INF)),
        (torch.float32, [0.0, 2.0], [-0.0, 2.0], (1, 0.0, 0.0)),
        (torch.float32, [0.0, 2.0], [1.0, 2.0], (1, 1.0, 1.0)),
        (torch.int64, [2**60, 1], [2**60 + 1, 1], (1, 1.0, 2.0**-60)),
        (torch.int64, [-(2**63), 1], [2**63 - 1, 1], (1, 2.0**64, 2.0)),
        (torch.bool, [True, False], [False, False], (1, 1.0, 1.0)),
        (torch.complex64, [1j, 0], [1.0, 0], (1, math.sqrt(2), math.sqrt(2))),
    ],
)
def test_how_much_items_differ(
    dtype: torch.dtype, one: list[Any], two: list[Any], difference: tuple[int, float, float]
) -> None:
    found = compare_items(torch.tensor(one, dtype=dtype), torch.tensor(two, dtype=dtype))
    assert (found.changed, found.max_abs, found.max_rel) == pytest.approx(difference)


@pytest.mark.parametrize("dtype", sorted(TYPES.values(), key=str), ids=str)
def test_items_of_every_type_are_compared(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    one = torch.zeros(3 * size, dtype=torch.uint8).view(dtype)
    two = torch.zeros(3 * size, dtype=torch.uint8)
    two[size] = 1
    found = compare_items(one, two.view(dtype))
    assert (found.items, found.changed) == (3, 1)
    assert compare_items(one, one) == ItemDifference(3)


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (1, 1, 7), (2, 3, 5), (1, 40), (40, 1), (2, 9)])
@pytest.mark.parametrize("most", [1, 4, 6, 1000])
def test_blocks_make_up_the_tensor_once(shape: tuple[int, ...], most: int) -> None:
    seen = torch.zeros(shape, dtype=torch.int64)
    for offsets, extents in blocks(shape, most):
        assert math.prod(extents) <= max(most, 1)
        part = seen
        for dim, (offset, extent) in enumerate(zip(offsets, extents, strict=True)):
            part = part.narrow(dim, offset, extent)
        part += 1
    assert (seen == 1).all()


def test_large_tensors_are_compared_in_blocks(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_BLOCK", 4096)
    monkeypatch.setattr(compare, "_BATCH", 8192)
    held: list[int] = []
    read = compare._read_blocks

    def seen(attempt: Any, rows: Any, batch: Any, side: int) -> Any:
        held.append(sum(block.nbytes for block in batch))
        return read(attempt, rows, batch, side)

    monkeypatch.setattr(compare, "_read_blocks", seen)
    one = {"large": torch.arange(40_000.0).view(200, 200), "row": torch.zeros(1, 5000), "n": torch.zeros(3)}
    two = {name: tensor.clone() for name, tensor in one.items()}
    two["large"][199, 199] = two["large"][0, 0] = -1.0
    two["row"][0, 4999] = 2.0
    before, after = save(tmp_path, one, two)
    made = diff(tmp_path, before, after)
    assert {name: (found.items, found.changed) for name, found in short(made).items()} == {
        "large": (40_000, 2),
        "row": (5000, 1),
    }
    assert max(held) <= 8192 + 4096 and len(held) > 20


def test_the_command_says_it_in_exit_codes_lines_and_json(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, other = tmp_path / "one", tmp_path / "two"
    before, after = save(root, {"w": torch.zeros(4)}, {"w": torch.ones(4)})
    save(other, {"w": torch.ones(4)})
    assert cli.main(["diff", str(root), str(other)]) == 0
    assert "1 equal" in capsys.readouterr().out
    assert cli.main(["diff", f"{root}/{before}", after]) == 1
    out = capsys.readouterr().out
    assert "1 changed" in out and "extra.w" in out and "MAX REL" in out
    assert cli.main(["diff", before, str(root), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (changed,) = found["changed"].values()
    assert not found["same"] and changed == {"items": 4, "changed": 4, "max_abs": 1.0, "max_rel": 1.0}
    with pytest.raises(UsageError, match="a root: give"):
        cli.main(["diff", before, after])
    with pytest.raises(Absent):
        cli.main(["diff", str(root), str(tmp_path / "nothing")])
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        cli.main(["diff", f"{root}/seq-000099.step-0000000099.e1-abcdef", after])
    flip(next((root / after).glob("shard-*")), 4096 + 8)
    with pytest.raises(CheckpointError):
        cli.main(["diff", str(root), str(other)])
