"""Import of safetensors, of what `save_pretrained` wrote, and of files of `torch.save`: bit for bit, or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import State, cli, load_weights  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.restore.loading import load_state  # noqa: E402
from hyperpod_kit.checkpoint.state_dict import StateDict  # noqa: E402
from tests.support.content import contents  # noqa: E402
from tests.support.damage import flip  # noqa: E402


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) and value.dtype == other[name].dtype for name, value in one.items()
    )


def tensors() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    return {
        "weight": torch.randn(5, 7, generator=generator),
        "bias": torch.randn(3, generator=generator).bfloat16(),
        "ids": torch.arange(5, dtype=torch.uint8),
        "none": torch.ones(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }


# --- safetensors ------------------------------------------------------------------------------------------------


def written(folder: Path) -> Path:
    from safetensors.torch import save_file

    save_file(tensors(), str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder / "model.safetensors"


def test_a_file_of_safetensors_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    root, out = tmp_path / "root", tmp_path / "out"
    words = ["import", str(written(tmp_path)), "--from", "safetensors", "--out", str(root)]
    assert typed(words) == 0
    said = capsys.readouterr()
    assert "1 file without checksums" in said.err and said.out.startswith("step 0: 5 tensors")
    assert typed(["verify", str(root)]) == 0
    found = {name: torch.zeros_like(value) for name, value in tensors().items()}
    load_state(root, StateDict({"model": found}))
    assert same(found, tensors())
    assert export(root, "safetensors", out).tensors == 5
    assert same(load_file(out), tensors())


def header_of(path: Path, change: Any) -> None:
    """The header as `change` makes it anew, of the same length."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    said = json.loads(data[8 : 8 + size])
    change(said)
    text = json.dumps(said, separators=(",", ":")).encode()
    assert len(text) <= size
    path.write_bytes(data[:8] + text.ljust(size) + data[8 + size :])


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def a_hole(path: Path) -> None:
    header_of(path, lambda said: said.pop("bias"))


def other_shape(path: Path) -> None:
    header_of(path, lambda said: said["weight"].update(shape=[5, 6]))


def unknown_type(path: Path) -> None:
    header_of(path, lambda said: said["weight"].update(dtype="F4"))


def no_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes())


def nothing(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil, said",
    [
        (cut, "its tensors end at"),
        (longer, "its tensors end at"),
        (a_hole, "and what is before it ends at"),
        (other_shape, "weight lies at"),
        (unknown_type, "weight is a tensor of F4"),
        (no_header, "a header of"),
        (nothing, "it has no header"),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(
    tmp_path: Path, spoil: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(written(tmp_path))
    for kind, source in (("safetensors", tmp_path / "model.safetensors"), ("huggingface", tmp_path)):
        assert typed(["import", str(source), "--from", kind, "--out", str(tmp_path / "root")]) in (1, 2)
        assert said in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


# --- Hugging Face -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with tied weights, in several files."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=3, n_head=2)
    folder = tmp_path_factory.mktemp("models") / "checkpoint-40"
    transformers.GPT2LMHeadModel(config).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def test_what_save_pretrained_wrote_is_loaded_and_exported_again(pretrained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    root, out = tmp_path / "root", tmp_path / "out"
    made = import_checkpoint(pretrained, "huggingface", root)
    assert (made.step, made.unchecked) == (40, len(list(pretrained.glob("*.safetensors"))))
    expected = transformers.AutoModelForCausalLM.from_pretrained(pretrained).state_dict()
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(pretrained))
    got = load_weights(root, model)
    assert same(model.state_dict(), expected) and got.missing == (), "the tied head comes with the embedding"
    export(root, "huggingface", out)
    assert same(transformers.AutoModelForCausalLM.from_pretrained(out).state_dict(), expected)


def test_an_index_that_is_not_of_its_files_is_refused(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    name = "model.safetensors.index.json"
    said = json.loads((pretrained / name).read_text())
    first, second = sorted(set(said["weight_map"].values()))[:2]
    taken = next(key for key, file in said["weight_map"].items() if file == first)
    for number, (change, words) in enumerate(
        [
            (lambda folder: (folder / second).unlink(), f"it lacks '{second}'"),
            (lambda folder: shutil.copy(folder / first, folder / second), f"does not match {name}"),
            (lambda folder: (folder / name).write_text("{"), f"{name} is damaged"),
            (
                lambda folder: (folder / name).write_text(json.dumps({"weight_map": {taken: f"../x/{first}"}})),
                f"it lacks '../x/{first}'",
            ),
            (lambda folder: [path.unlink() for path in folder.glob("model*")], "has neither model.safetensors nor"),
        ]
    ):
        folder = tmp_path / str(number)
        shutil.copytree(pretrained, folder)
        change(folder)
        assert typed(["import", str(folder), "--from", "huggingface", "--out", str(tmp_path / "root")]) in (1, 2)
        assert words in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


# --- torch.save -------------------------------------------------------------------------------------------------


def test_a_state_dict_alone_is_a_models_and_ties_stay(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = model[0].weight
    torch.save(model.state_dict(), tmp_path / "model-7.pt")
    made = import_checkpoint(tmp_path / "model-7.pt", "torch", tmp_path / "root")
    assert (made.step, made.tensors, made.unchecked) == (7, 3, 0), "the tied one is there once"
    other = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    other[1].weight = other[0].weight
    assert load_state(tmp_path / "root", State(other, rng=False)).step == 7
    assert same(other.state_dict(), model.state_dict())


def test_a_dict_of_plain_torch_goes_on_under_a_state_dict(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "names": ["a", ("b", None)]}
    torch.save(held, tmp_path / "x.pt")
    import_checkpoint(tmp_path / "x.pt", "torch", tmp_path / "root", step=5)
    other = torch.nn.Linear(4, 4)
    moments = torch.optim.AdamW(other.parameters())
    load_state(tmp_path / "root", found := StateDict({"model": other, "optimizer": moments, "epoch": 0, "names": []}))
    assert same(other.state_dict(), model.state_dict()) and found.extra["epoch"] == 3
    assert found.extra["names"] == ["a", ("b", None)]
    assert moments.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert same(moments.state_dict()["state"][0], optimizer.state_dict()["state"][0])


def test_files_of_torch_that_are_damaged_or_of_classes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "1.pt"
    torch.save(tensors(), whole)
    place = whole.read_bytes().index(tensors()["weight"].numpy().tobytes())
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module-1.pt")
    torch.save([1], tmp_path / "list-1.pt")
    for name in ("flipped-1", "cut-1"):
        (tmp_path / name).write_bytes(whole.read_bytes())
    flip(tmp_path / "flipped-1", place + 11)
    cut(tmp_path / "cut-1")
    for name, words, codes in (
        ("flipped-1", "Bad CRC-32", (1, 2)),
        ("cut-1", "is damaged", (1, 2)),
        ("module-1.pt", "values of classes that cannot be imported", (1, 2)),
        ("list-1.pt", "holds a list, expected a dict", (1, 2)),
        ("nothing", "no such file or directory", (3,)),
    ):
        ended = typed(["import", str(tmp_path / name), "--from", "torch", "--out", str(tmp_path / "root")])
        assert ended in codes
        assert words in capsys.readouterr().err
    assert not (tmp_path / "root").exists()
    import_checkpoint(whole, "torch", tmp_path / "root")
    assert {name for name in contents(tmp_path / "root")} == {f"model.{name}" for name in tensors()}
