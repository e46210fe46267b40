"""`checkpoint get`: a tensor of a checkpoint without torch. Divided ones: tests/distributed/test_weights.py."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from hyperpod_kit.checkpoint import Manager, State  # noqa: E402
from hyperpod_kit.checkpoint.commands import cli  # noqa: E402
from hyperpod_kit.checkpoint.repository.format.boxes import Runs  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from tests.support.damage import flip  # noqa: E402


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(3, 5))
    model[1].weight = model[0].weight
    extra: dict[str, Any] = {
        "low": torch.arange(6.0).bfloat16().view(2, 3),
        "complex": torch.tensor([1 + 2j]),
        "one": torch.tensor(7),
        "none": torch.zeros(0, 4),
        "big": torch.arange(3 * 1024 * 1024).view(3, -1),  # of several chunks
        "ünï": [{"x": torch.tensor([True, False])}],
    }
    with Manager(tmp_path / "root") as manager:
        manager.restore(state := State(model, extra=extra))
        for step in (1, 2):
            with torch.no_grad():
                model[0].weight.fill_(step)
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    return tmp_path / "root"


def got(root: Path, name: str, file: str, *more: str, code: int = 0) -> Any:
    path = root.parent / file
    path.unlink(missing_ok=True)
    assert cli.main(["get", str(root), name, "--out", str(path), *more]) == code
    assert code or not list(root.parent.glob("*.partial-*"))
    if code:
        assert not path.exists()
        return None
    return numpy.load(path) if path.suffix == ".npy" else load_file(path)


def test_each_type_and_shape_in_both_formats(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert got(root, "model.0.weight", "w.npy").tolist() == [[2.0] * 3] * 5
    assert got(root, "model.1.weight", "w.npy").tolist() == [[2.0] * 3] * 5  # by its other name
    assert got(root, "rank.00000.extra.one", "one.npy").tolist() == 7
    assert got(root, "extra.one", "one.npy").tolist() == 7
    assert got(root, "extra.none", "none.npy").shape == (0, 4)
    assert got(root, "extra.complex", "c.npy").tolist() == [1 + 2j]
    assert got(root, "extra.ünï.0.x", "bool.npy").tolist() == [True, False]
    big = torch.arange(3 * 1024 * 1024).view(3, -1)
    assert numpy.array_equal(got(root, "extra.big", "big.npy"), big.numpy())
    assert torch.equal(got(root, "extra.big", "big.safetensors")["rank.00000.extra.big"], big)
    assert got(root, "extra.low", "low.safetensors")["rank.00000.extra.low"].tolist() == [[0, 1, 2], [3, 4, 5]]
    capsys.readouterr()
    got(root, "model.0.bias", "b.npy", "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["dtype"], said["shape"], said["nbytes"]) == ("F32", [5], 20)


def test_what_cannot_be_had_is_named_and_leaves_no_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got(root, "extra.low", "low.npy", code=2)
    assert "is BF16, a type that numpy does not have" in capsys.readouterr().err
    got(root, "model.0.weights", "w.npy", code=2)
    assert "has no tensor 'model.0.weights'" in capsys.readouterr().err
    got(root, "model.0.weight", "w.bin", code=2)
    (root.parent / "w.npy").write_text("mine")
    assert cli.main(["get", str(root), "model.0.weight", "--out", str(root.parent / "w.npy")]) == 2
    assert (root.parent / "w.npy").read_text() == "mine"
    assert cli.main(["get", str(root), "model.0.weight", "--out", str(root / "no" / "w.npy")]) == 1
    assert "could not be written: No such file or directory" in capsys.readouterr().err


def test_a_flipped_bit_goes_back_to_the_one_before(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = catalog.list_checkpoints(root)[0].checkpoint_id
    flip(root / newest / "shard-00000.safetensors", -100_000)
    flip(root / newest / "shard-00000.safetensors", 4096 + 8)
    assert got(root, "model.0.weight", "w.npy").tolist() == [[1.0] * 3] * 5
    assert f"passed over {newest}" in capsys.readouterr().err
    got(root, "model.0.weight", "w.npy", "--attempt", newest, code=1)


def test_runs_of_a_box_are_those_of_the_elements() -> None:
    chance = random.Random(5)
    for _ in range(300):
        full = tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 4)))
        offsets = tuple(chance.randrange(extent) for extent in full)
        shape = tuple(chance.randint(1, extent - at) for extent, at in zip(full, offsets))
        whole = numpy.arange(numpy.prod(full), dtype=numpy.int16).reshape(full)
        piece = whole[tuple(slice(at, at + size) for at, size in zip(offsets, shape))].tobytes()
        first = chance.randint(0, len(piece))
        last = chance.randint(first, len(piece))
        made = bytearray(whole.tobytes())
        runs = Runs(full, offsets, shape, 2)
        assert len(list(runs.contiguous_runs(0, len(piece)))) == runs.count
        for source, at, size in runs.contiguous_runs(first, last):
            assert made[at : at + size] == piece[source : source + size]
            made[at : at + size] = b"\xff" * size
        assert made.count(b"\xff") == last - first
