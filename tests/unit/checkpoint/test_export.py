"""Export: the same values in other formats, complete or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import State, cli  # noqa: E402
from hyperpod_kit.checkpoint.convert.formats import deepspeed  # noqa: E402
from hyperpod_kit.checkpoint.manager import Manager  # noqa: E402
from hyperpod_kit.checkpoint.state.sharded_state import torch_save_with_length_and_padding  # noqa: E402
from hyperpod_kit.checkpoint.state_dict import StateDict  # noqa: E402
from tests.support.damage import flip  # noqa: E402


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


@pytest.fixture
def saved(shm: Path, tmp_path: Path) -> tuple[Path, Any]:
    """(root with steps 0 and 1, the model of step 1)."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40, dtype=torch.bfloat16))
    model.append(torch.nn.Linear(40, 40, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    manager = Manager(tmp_path / "root")
    state = State(model, optimizer, extra={"note": ("a", 1)})
    manager.restore(state)
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    assert manager.close()
    return tmp_path / "root", model


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_format_has_the_same_values(
    saved: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, model = saved
    wanted = model.state_dict()
    for to in ("dcp", "safetensors", "torch"):
        assert typed(["export", str(root), "--to", to, "--out", str(tmp_path / to), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step"] == 1
    loaded = torch.load(tmp_path / "torch", weights_only=True)
    assert all(torch.equal(loaded["model"][name], value) for name, value in wanted.items())
    assert loaded["extra"]["note"] == ("a", 1)
    assert float(loaded["optimizer"]["state"]["0.weight"]["step"]) == 2.0

    from safetensors.torch import load_file

    flat = load_file(tmp_path / "safetensors")
    assert set(flat) == set(wanted) - {"2.weight"}
    assert all(torch.equal(value, wanted[name]) for name, value in flat.items())

    import torch.distributed.checkpoint as dcp

    into = {"model": {name: torch.zeros_like(value) for name, value in wanted.items()}}
    dcp.load(into, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    assert all(torch.equal(into["model"][name], value) for name, value in wanted.items())


def test_damage_leads_to_the_older_one_or_to_an_error_and_leaves_nothing(
    saved: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _ = saved
    first, second = sorted(path for path in root.glob("seq-*") if path.is_dir())
    shard = second / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-5000] ^= 1
    shard.write_bytes(data)
    out = tmp_path / "out"
    assert typed(["export", str(root), "--to", "torch", "--out", str(out), "--attempt", second.name]) == 1
    assert "expected" in capsys.readouterr().err and not list(tmp_path.glob("*out*"))
    assert typed(["export", str(root), "--to", "torch", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "step 0" in said.out and f"passed over {second.name}" in said.err
    assert typed(["export", str(root), "--to", "torch", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert first.name in said.out


def test_of_what_is_each_ranks_own_rank_0s_is_written_and_that_is_said(
    shm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Linear(4, 4)
    manager = Manager(tmp_path / "root")
    state = State(model, own=["model.bias"])
    manager.restore(state)
    assert manager.save(0, state, on_busy="wait").wait("durable", 60) and manager.close()
    out = tmp_path / "out"
    assert typed(["export", str(tmp_path / "root"), "--to", "safetensors", "--out", str(out)]) == 0
    assert "1 tensor of the model with a different value on each rank: rank 0's" in capsys.readouterr().err
    from safetensors.torch import load_file

    assert torch.equal(load_file(out)["bias"], model.bias)


MODEL, PARTITION = "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"


def deepspeed_files(seed: int) -> dict[str, Any]:
    """What DeepSpeed says in its files, less its own classes; the values of a step are its seed's."""
    torch.manual_seed(seed)
    weight = torch.randn(3, 5, dtype=torch.bfloat16)
    model = {"module": {"a": weight, "tied": weight}, "param_shapes": [{"a": torch.Size([3, 5])}], "step": seed}
    moments = {"state": {0: {"exp_avg": torch.randn(4096), "step": torch.tensor(3.0)}}, "betas": (0.9, 0.95), "own": []}
    return {MODEL: model, PARTITION: {"optimizer_state_dict": moments, "module": None}}


@pytest.fixture
def saved_files(shm: Path, tmp_path: Path) -> Path:
    """A root with steps 3 and 4 as DeepSpeed's adapter saves them."""
    manager = Manager(tmp_path / "zero")
    manager.restore(StateDict({}))
    for step in (3, 4):
        files: dict[str, Any] = {}
        words = {}
        for name, said in deepspeed_files(step).items():
            held: list[Any] = []
            words[name] = torch_save_with_length_and_padding(name, deepspeed.extract_tensors(said, held))
            files[name] = {str(number): tensor for number, tensor in enumerate(held)}
        state = StateDict({"words": words, "files": files, "generators": {}, "world": 1}, own=["words", "files.*zero*"])
        assert manager.save(step, state, on_busy="wait").wait("durable", 60)
    assert manager.close()
    return tmp_path / "zero"


def test_deepspeeds_files_are_those_that_were_saved_of_the_newest_that_is_whole(
    saved_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["export", str(saved_files), "--to", "deepspeed", "--out"]
    assert typed([*words, str(tmp_path / "nowhere" / "out")]) == 3
    assert "is not a directory" in capsys.readouterr().err, "a place that cannot be written is no fault of a checkpoint"
    second = max(path for path in saved_files.glob("seq-*") if path.is_dir())
    flip(next(second.glob("shard-*")), -5000)
    assert typed([*words, str(out), "--attempt", second.name]) == 1
    assert not list(tmp_path.glob("*out*"))
    assert typed([*words, str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rejected"][0][0] == second.name
    assert (out / "latest").read_text() == "global_step3"
    assert sorted(path.name for path in out.rglob("*")) == [PARTITION, "global_step3", "latest", MODEL]
    for name, expected in deepspeed_files(3).items():
        found = torch.load(out / "global_step3" / name, weights_only=True)
        ours: list[Any] = []
        theirs: list[Any] = []
        assert repr(deepspeed.extract_tensors(found, ours)) == repr(deepspeed.extract_tensors(expected, theirs))
        assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(ours, theirs, strict=True))
    module = torch.load(out / "global_step3" / MODEL, weights_only=True)["module"]
    assert module["a"].data_ptr() == module["tied"].data_ptr()


def test_a_checkpoint_of_another_adapter_has_no_files_of_deepspeed(
    saved: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(["export", str(saved[0]), "--to", "deepspeed", "--out", str(tmp_path / "out")]) == 2
    assert "not written by the DeepSpeed adapter" in capsys.readouterr().err and not list(tmp_path.glob("*out*"))
