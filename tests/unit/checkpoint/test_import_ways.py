"""What all imports and exports have in common: types of tensors there and back, an import that is done again, that is
only looked at, that is killed, and what is said meanwhile."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import cli, load_state  # noqa: E402
from hyperpod_kit.checkpoint.codec.dtypes import NAMES  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.convert.files.byte_progress import TerminalProgress  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.repository.format.shard import NATIVE  # noqa: E402
from hyperpod_kit.checkpoint.repository.selection import newest_valid  # noqa: E402
from hyperpod_kit.checkpoint.state_dict import StateDict  # noqa: E402
from hyperpod_kit.errors import NoCheckpoint, UsageError  # noqa: E402
from tests.support.content import contents  # noqa: E402
from tests.support.rows import full  # noqa: E402
from tests.support.warm import Program  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated", "ignore:ComplexHalf"
)


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


def bits(tensor: Any) -> Any:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def all_types() -> dict[str, Any]:
    """Of each type a matrix, one number, none, and one whose items do not lie in order."""
    made = {}
    for dtype, name in NAMES.items():
        data = torch.randint(
            0, 2, (48 * dtype.itemsize,), generator=torch.Generator().manual_seed(3), dtype=torch.uint8
        )
        whole = (data if dtype is torch.bool else data * 61).view(dtype)
        made.update({f"{name}.matrix": whole.view(6, 8), f"{name}.number": whole[5].clone().reshape(())})
        made.update({f"{name}.none": whole[:0].view(0, 3), f"{name}.turned": whole.view(6, 8).t()})
    return made


def written(kind: str, path: Path, model: dict[str, Any]) -> Path:
    if kind == "torch":
        torch.save({"model": model, "step": 3}, path)
    else:
        dcp.save({"model": model}, checkpoint_id=str(path), no_dist=True)
    return path


def read(kind: str, path: Path, model: dict[str, Any]) -> dict[str, Any]:
    if kind == "torch":
        return torch.load(path, weights_only=True)["model"]
    found = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in model.items()}
    dcp.load({"model": found}, checkpoint_id=str(path), no_dist=True)
    return found


@pytest.mark.parametrize("one", ["dcp", "torch"])
@pytest.mark.parametrize("other", ["dcp", "torch"])
def test_each_type_goes_there_and_back_bit_for_bit(tmp_path: Path, one: str, other: str) -> None:
    model = all_types()
    if "dcp" in (one, other):  # torch's own load has no copy for it
        model = {name: value for name, value in model.items() if not name.startswith("F8_E8M0FNU.")}
    root, out = tmp_path / "root", tmp_path / "out"
    made = import_checkpoint(written(one, tmp_path / "in-3", model), one, root, step=3)
    assert made.tensors == len(model) and made.unchecked == 0
    export(root, other, out)
    found = read(other, out, model)
    assert {name: bits(found[name]) for name in model} == {name: bits(value) for name, value in model.items()}
    import_checkpoint(out, other, tmp_path / "again", step=3)
    assert {name: held[2] for name, held in contents(tmp_path / "again").items()} == {
        name: held[2] for name, held in contents(root).items()
    }


def test_types_that_safetensors_lacks_are_named(tmp_path: Path) -> None:
    import_checkpoint(written("torch", tmp_path / "1.pt", all_types()), "torch", tmp_path / "root")
    with pytest.raises(UsageError, match="which safetensors does not have"):
        export(tmp_path / "root", "safetensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    from safetensors.torch import load_file

    native = {name: value for name, value in all_types().items() if name.partition(".")[0] in NATIVE}
    import_checkpoint(written("torch", tmp_path / "2.pt", native), "torch", tmp_path / "root-2")
    export(tmp_path / "root-2", "safetensors", tmp_path / "out")
    assert {name: bits(value) for name, value in load_file(tmp_path / "out").items()} == {
        name: bits(value) for name, value in native.items()
    }


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested", "ignore:torch.quantize")
def test_tensors_that_cannot_be_held_are_named_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (torch.eye(3).to_sparse(), "x.coalesce()"),
        (torch.eye(3).to_sparse_csr(), "x.crow_indices()"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "x.int_repr()"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (torch.empty(2, device="meta"), "on meta"),
    ]
    for number, (tensor, said) in enumerate(cases):
        path = tmp_path / f"{number}.pt"
        torch.save({"model": {"inner": tensor}, "n": 1}, path)
        assert typed(["import", str(path), "--from", "torch", "--out", str(tmp_path / "root")]) in (1, 2)
        found = capsys.readouterr().err
        assert said in found and "Traceback" not in found, found
    assert not list((tmp_path / "root").glob("seq-*"))


def test_views_of_one_storage_and_ties(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    model = {"flat": flat, "left": flat[:6].view(2, 3), "right": flat[6:], "tied": flat, "turned": flat.view(3, 4).t()}
    made = import_checkpoint(written("torch", tmp_path / "1.pt", model), "torch", tmp_path / "root")
    assert made.tensors == 4, "the tied one is there once, views by themselves"
    export(tmp_path / "root", "torch", tmp_path / "out")
    found = torch.load(tmp_path / "out", weights_only=True)["model"]
    assert {name: bits(found[name]) for name in model} == {name: bits(value) for name, value in model.items()}
    assert found["flat"].data_ptr() == found["tied"].data_ptr()


def test_it_is_only_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root, out = written("dcp", tmp_path / "in-7", {"a": torch.ones(5)}), tmp_path / "root", tmp_path / "out"
    words = ["import", str(source), "--from", "dcp", "--out", str(root)]
    assert typed([*words, "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["dry_run"], said["attempt"], said["tensors"], said["step"]) == (True, "", 1, 7)
    assert typed([*words, "--dry-run"]) == 0 and "nothing was written" in capsys.readouterr().out
    assert not root.exists()
    assert typed(words) == 0
    for to, code in (("dcp", 0), ("torch", 0), ("safetensors", 0), ("megatron", 2), ("lightning", 2), ("deepspeed", 2)):
        words = ["export", str(root), "--to", to, "--out", str(out), "--dry-run", "--json"]
        capsys.readouterr()
        assert typed(words) == code, to
        said_of_it = capsys.readouterr().out
        assert code or json.loads(said_of_it)["bytes"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-7", "root"]


def test_an_import_that_is_done_again_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = written("torch", tmp_path / "in-7.pt", {"a": torch.ones(5)}), tmp_path / "root"
    words = ["import", str(source), "--from", "torch", "--out", str(root), "--json"]
    assert typed(words) == 0
    first = json.loads(capsys.readouterr().out)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert typed(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert (first.pop("already"), again.pop("already")) == (False, True) and first == again
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    written("torch", tmp_path / "in-7.pt", {"a": torch.zeros(5)})
    assert typed(words) == 2 and "has checkpoints" in capsys.readouterr().err, "the file is another one"
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("where", [*full("commit.before_extra", "commit.before_index"), "commit.before_manifest"])
def test_an_import_that_is_killed_leaves_nothing_valid(tmp_path: Path, where: str) -> None:
    source, root = written("dcp", tmp_path / "in-7", {"a": torch.ones(5)}), tmp_path / "root"
    words = ["-m", "hyperpod_kit.checkpoint.cli", "import", str(source), "--from", "dcp", "--out", str(root)]
    killed = Program(words, {**os.environ, "HPK_FAILPOINT": where}, both=True)
    assert killed.wait(120) == 1 and "ended without an answer, by SIGKILL" in killed.stdout.read()
    assert list(root.glob("seq-*"))
    with pytest.raises(NoCheckpoint):
        newest_valid(str(root))
    assert typed(["import", str(source), "--from", "dcp", "--out", str(root)]) == 0
    assert typed(["verify", str(root)]) == 0


@pytest.mark.parametrize("to", ["dcp", "safetensors", "torch"])
def test_an_export_that_is_killed_leaves_nothing_under_its_name(tmp_path: Path, to: str) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    import_checkpoint(written("torch", tmp_path / "1.pt", {"a": torch.ones(5)}), "torch", root)
    program = (
        "import os, signal, sys\n"
        "from hyperpod_kit.checkpoint import atomic_output\n"
        "from hyperpod_kit.checkpoint.convert.export_checkpoint import export\n"
        "atomic_output._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(*sys.argv[1:])\n"
    )
    assert Program(["-c", program, str(root), to, str(out)], dict(os.environ)).wait(120) == -signal.SIGKILL
    assert not out.exists()
    assert export(root, to, out).tensors == 1


def test_no_directory_for_the_export_is_said_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "out"
    (tmp_path / "RUN.json").write_text("{}")
    assert typed(["export", str(tmp_path), "--to", "torch", "--out", str(out)]) == 3
    assert f"hint: mkdir -p {out.parent}" in capsys.readouterr().err


def test_what_takes_long_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    told = TerminalProgress("imported", interval=5, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        told(second << 20, 11 << 20)
    assert capsys.readouterr().err.splitlines() == ["imported 5 of 11 MiB", "imported 10 of 11 MiB"]
    heard: list[tuple[int, int]] = []
    source = written("torch", tmp_path / "1.pt", {"a": torch.ones(12 << 20)})
    import_checkpoint(source, "torch", tmp_path / "root", progress=lambda *said: heard.append(said))
    assert len(heard) == 4 and heard[-1][0] >= 48 << 20 and {whole for _, whole in heard} == {source.stat().st_size}
    heard.clear()
    export(tmp_path / "root", "torch", tmp_path / "out", progress=lambda *said: heard.append(said))
    assert heard[-1][0] == 48 << 20


def test_typed_values_have_the_number_of_their_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value, number in (("plain", 0.1, 1), ("typed", torch.bfloat16, 4)):
        torch.save({"model": {"w": torch.ones(2)}, "value": value}, tmp_path / f"{name}.pt")
        root = tmp_path / name
        words = ["import", str(tmp_path / f"{name}.pt"), "--from", "torch", "--step", "3", "--out", str(root)]
        assert typed(words) == 0
        (extra,) = root.glob("*/extra.json")
        assert json.loads(extra.read_text())["format"] == f"hpk-extra/{number}"
        values = {"model": {"w": torch.zeros(2)}, "value": None}
        state = StateDict(values)
        load_state(root, state)
        assert state.extra["value"] == value and state.extra["model"]["w"].tolist() == [1.0, 1.0]
