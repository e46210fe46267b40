"""Weights out of a checkpoint that does not fit the model. Sharded models and several ranks: tests/distributed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hyperpod_kit.checkpoint import ConvertedFrom, Manager, State, load_weights
from hyperpod_kit.checkpoint.repository.format import digest, layout, manifest
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import CheckpointError, NoCheckpoint, NoValidCheckpoint
from tests.support.damage import flip
from tests.unit.checkpoint import test_subclasses as quantised


def net(classes: int = 2, *, tied: bool = True) -> Any:
    made = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, classes)
    )
    if tied:
        made[2].weight = made[0].weight
    return made


def saved(root: Path, *, saves: int = 1) -> Any:
    torch.manual_seed(1)
    model = net()
    ema: Any = torch.optim.swa_utils.AveragedModel(model)
    state = State(model, torch.optim.AdamW(model.parameters()), ema=ema)
    with Manager(root) as manager:
        manager.restore(state)
        for step in range(1, saves + 1):
            with torch.no_grad():
                model[0].weight.fill_(step)
                ema.module[0].bias.fill_(-step)
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    return model


def bytes_of(model: Any) -> list[bytes]:
    return [value.float().numpy().tobytes() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    "extra",
    [
        b"[]",
        b'"x"',
        b"[" * 100_000,
        b'{"format":"hpk-extra/1"}',
        b'{"format":"hpk-extra/1","shared":7,"ranks":[{}]}',
        b'{"format":"hpk-extra/1","shared":{},"ranks":[7]}',
        b'{"format":"hpk-extra/2","shared":{},"ranks":[{}],"like":[{"model":9}]}',
        b'{"format":"hpk-extra/1","shared":{"model":{"0.weight":{"$":"tensor"}}},"ranks":[{}]}',
        b'{"format":"hpk-extra/1","shared":{"model":{"0.weight":{"$":"tensor","name":"nowhere"}}},"ranks":[{}]}',
        b'{"format":"hpk-extra/1","shared":{"model":{"$":"dict","v":7}},"ranks":[{}]}',
    ],
)
def test_whatever_a_tree_is_the_older_checkpoint_is_taken(shm: Path, tmp_path: Path, extra: bytes) -> None:
    """Whoever may write to the root seals what he wants: no rank may leave the others waiting over it."""
    saved(tmp_path, saves=2)
    store = PosixStore(str(tmp_path))
    newest, older = [entry.checkpoint_id for entry in catalog.iter_checkpoints_newest_first(store)]
    folder = tmp_path / newest
    body = manifest.parse_sealed_json((folder / layout.MANIFEST_FILE).read_bytes(), layout.MANIFEST_FILE)
    body["extra"].update(size=len(extra), root=digest.small_object_digest(extra))
    for name, data in ((layout.EXTRA_FILE, extra), (layout.MANIFEST_FILE, manifest.seal_json(body))):
        (folder / name).unlink()
        (folder / name).write_bytes(data)
    got = load_weights(tmp_path, net())
    assert got.checkpoint_id == older and [name for name, _ in got.rejected] == [newest]
    with pytest.raises(CheckpointError):
        load_weights(tmp_path, net(), checkpoint_id=newest)


def test_all_of_it_in_another_type_and_untied(shm: Path, tmp_path: Path) -> None:
    model = saved(tmp_path)
    got = load_weights(tmp_path, same := net())
    assert bytes_of(same) == bytes_of(model) and got.step == 1 and len(got.loaded) == len(model.state_dict())
    low = net(tied=False).bfloat16()
    load_weights(tmp_path, low)
    assert bytes_of(low) == bytes_of(model.bfloat16()) and low[1].num_batches_tracked.dtype == torch.int64
    # Wrappers put prefixes into names; a compiled model is not compiled for this.
    load_weights(tmp_path, torch.compile(other := net()))  # type: ignore[arg-type]
    assert bytes_of(other) == bytes_of(same)


def test_what_does_not_fit_is_named_before_anything_is_changed(shm: Path, tmp_path: Path) -> None:
    model = saved(tmp_path)
    torch.manual_seed(2)
    other = net(classes=7)
    other.append(torch.nn.Linear(7, 1))
    before = bytes_of(other)
    with pytest.raises(CheckpointError, match=r"missing in the checkpoint \['4.weight', '4.bias'\], of another shape"):
        load_weights(tmp_path, other)
    assert bytes_of(other) == before
    got = load_weights(tmp_path, other, strict=False)
    assert got.missing == ("4.weight", "4.bias") and got.other == ("3.weight", "3.bias") and got.unexpected == ()
    assert torch.equal(other[0].weight, model[0].weight) and torch.equal(other[2].bias, model[2].bias)
    assert bytes_of(other)[-4:] == before[-4:]
    fewer = net()[:2]
    with pytest.raises(CheckpointError, match=r"unexpected \['2.bias', '2.weight', '3.bias', '3.weight'\]"):
        load_weights(tmp_path, fewer)
    assert len(load_weights(tmp_path, fewer, strict=False).loaded) == 7
    # A number of another kind is no number of another precision.
    steps = net()
    steps[1].num_batches_tracked = torch.tensor(0.5)
    assert load_weights(tmp_path, steps, strict=False).other == ("1.num_batches_tracked",)


def test_other_names_and_the_average_of_the_weights(shm: Path, tmp_path: Path) -> None:
    saved(tmp_path)
    body = torch.nn.Module()
    body.encoder = net()
    body.new = torch.nn.Linear(1, 1)

    def names(name: str) -> str | None:
        return name.removeprefix("encoder.") if name.startswith("encoder.") else None

    got = load_weights(tmp_path, body, names=names)
    assert "encoder.0.weight" in got.loaded and "new.weight" not in (*got.loaded, *got.missing)
    averaged = net(tied=False)
    load_weights(tmp_path, averaged, inside="objects.ema", names=lambda name: f"module.{name}", strict=False)
    assert averaged[0].bias.tolist() == [-1.0] * 4
    with pytest.raises(
        CheckpointError, match=r"no tensors in 'objects\.other'; at its top it has classes, extra, model"
    ):
        load_weights(tmp_path, averaged, inside="objects.other")


class Separate(torch.nn.Module):
    """Attention with three projections."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(4, 4) for _ in range(3))
        self.out = torch.nn.Linear(4, 3)


class Fused(torch.nn.Module):
    """The same with one projection, whose last layer lies the other way round, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12)
        self.out_t = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))


def sources(name: str) -> str | ConvertedFrom | None:
    if name.startswith("qkv."):
        part = name.removeprefix("qkv.")
        return ConvertedFrom((f"q.{part}", f"k.{part}", f"v.{part}"), lambda *parts: torch.cat(parts))
    return ConvertedFrom(("out.weight",), lambda weight: weight.T)


def test_another_architecture_is_filled_by_functions(shm: Path, tmp_path: Path) -> None:
    model, fused = Separate(), Fused()
    with Manager(tmp_path) as manager:
        assert manager.save(1, State(model), on_busy="wait").wait("durable", 60)
    with pytest.raises(CheckpointError, match=r"unexpected \['out.bias'\]"):
        load_weights(tmp_path, fused, names=sources)
    assert not fused.out_t.any()
    got = load_weights(tmp_path, fused, names=sources, drop=lambda name: name == "out.bias")
    assert torch.equal(fused.qkv.weight, torch.cat([model.q.weight, model.k.weight, model.v.weight]))
    assert torch.equal(fused.qkv.bias, torch.cat([model.q.bias, model.k.bias, model.v.bias]))
    assert torch.equal(fused.out_t, model.out.weight.T.bfloat16())
    assert set(got.converted) == set(got.loaded) == {"qkv.weight", "qkv.bias", "out_t"} and not got.unexpected
    assert got.dropped == ("out.bias",) and "1 left out on purpose: out.bias" in str(got)
    # And back: three are made of one.
    with Manager(other := tmp_path / "fused") as manager:
        assert manager.save(1, State(fused), on_busy="wait").wait("durable", 60)

    def thirds(name: str) -> ConvertedFrom | None:
        layer, _, part = name.partition(".")
        at = "qkv".find(layer)
        return ConvertedFrom((f"qkv.{part}",), lambda whole: whole[4 * at : 4 * at + 4]) if at >= 0 else None

    again = Separate()
    load_weights(other, again, names=thirds, drop=lambda name: name == "out_t")
    for layer in "qkv":
        name = f"{layer}.weight"
        assert torch.equal(again.get_parameter(name), model.get_parameter(name))


def test_a_function_that_raises_or_makes_another_shape_changes_nothing(shm: Path, tmp_path: Path) -> None:
    saved(tmp_path)
    model = net()
    before = bytes_of(model)

    def names(by: Any) -> Any:
        return lambda name: ConvertedFrom((name,), by) if name == "3.bias" else name

    for by, words in (
        (lambda bias: bias[:5] @ torch.ones(3), "3.bias cannot be made of .* RuntimeError"),
        (lambda bias: 1, "a int, expected a tensor"),
        (lambda bias: bias[:1], r"of another shape or kind in the checkpoint \['3.bias'\]"),
        (lambda bias: bias.long(), r"of another shape or kind in the checkpoint \['3.bias'\]"),
    ):
        with pytest.raises(CheckpointError, match=words):
            load_weights(tmp_path, model, names=names(by))
        assert bytes_of(model) == before
    got = load_weights(tmp_path, model, names=names(lambda bias: bias[:1]), strict=False)
    assert got.other == ("3.bias",) and "3.bias" not in got.loaded and bytes_of(model)[-1] == before[-1]
    with pytest.raises(TypeError, match="expected a name, ConvertedFrom or None"):
        load_weights(tmp_path, model, names=lambda name: 3)  # type: ignore[arg-type, return-value]


def test_quantised_weights_are_filled_from_their_like_alone(shm: Path, tmp_path: Path) -> None:
    with Manager(tmp_path) as manager:
        assert manager.save(1, State(quantised.job(3)), on_busy="wait").wait("durable", 60)
    model = quantised.job(7)
    whole = model.w.whole
    got = load_weights(tmp_path, model)
    assert model.w.whole is whole and (whole == 3).all() and (model.b.whole == 4).all() and not got.converted
    assert got.loaded == ("w", "tied", "n", "b")
    plain = torch.nn.Module()
    plain.w, plain.b = torch.nn.Parameter(torch.zeros(4, 6)), torch.nn.Buffer(torch.zeros(4, 6))
    with pytest.raises(CheckpointError, match=r"of another shape or kind in the checkpoint \['w', 'b'\]"):
        load_weights(tmp_path, plain)


def test_a_flipped_bit_walks_back_and_a_named_attempt_does_not(shm: Path, tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint):
        load_weights(tmp_path / "none", net())
    saved(tmp_path, saves=2)
    newest, older = (entry.checkpoint_id for entry in catalog.list_checkpoints(tmp_path))
    flip(tmp_path / newest / "shard-00000.safetensors", 4096 + 8)
    got = load_weights(tmp_path, model := net())
    assert (got.step, got.checkpoint_id) == (1, older) and model[0].weight.unique().tolist() == [1.0]
    assert [name for name, _ in got.rejected] == [newest] and "bytes" in got.rejected[0][1]
    with pytest.raises(NoValidCheckpoint):
        load_weights(tmp_path, net(), checkpoint_id=newest)
    flip(tmp_path / older / "extra.json", 10)
    with pytest.raises(NoValidCheckpoint, match="extra"):
        load_weights(tmp_path, net())
