"""Import of what plain torch.distributed.checkpoint wrote: bit for bit what torch loads, or refused.

The directories are those of torch's own FileSystemWriter; a planner here cuts tensors into boxes as the ranks of a
sharded model do.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as Encoding  # noqa: E402

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import Manager, State, cli, load_weights  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.convert.files.byte_sources import closing_imported_files  # noqa: E402
from hyperpod_kit.checkpoint.convert.formats import dcp as dcp_format  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.restore.loading import load_state  # noqa: E402
from hyperpod_kit.checkpoint.state_dict import StateDict  # noqa: E402
from hyperpod_kit.errors import HyperpodKitError  # noqa: E402
from tests.support.content import contents  # noqa: E402
from tests.support.damage import flip  # noqa: E402
from tests.unit.checkpoint.cut_boxes import Cutting  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {
        "app": {
            "weights": {
                "a": torch.randn(6, 8, generator=generator),
                "half": torch.randn(9, generator=generator).half(),
            },
            "optim": {"state": {"a": {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.95)}]},
            "mixed": [torch.arange(4), {"inner": torch.ones(2, dtype=torch.uint16)}, 7],
        },
        "flipped": torch.randn(4, 5, generator=generator).t(),
        "last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "small": torch.ones(3, dtype=torch.float8_e4m3fn),
        "empty": torch.ones(0, 3),
        "words": {"bytes": b"x\x00", "none": None, "nested": {"tuple": (1, "b")}},
    }


def written(folder: Path, values: dict[str, Any] | None = None, **options: Any) -> Path:
    """As `dcp.save(values, checkpoint_id=folder)` writes it."""
    dcp.save(values or state(), checkpoint_id=str(folder), no_dist=True, **options)
    return folder


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("planner", [DefaultSavePlanner, Cutting])
def test_all_of_it_is_what_torch_loads(tmp_path: Path, planner: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, root = written(tmp_path / "step-12", planner=planner()), tmp_path / "root"
    assert typed(["import", str(folder), "--from", "dcp", "--out", str(root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["tensors"], said["unchecked"]) == (12, 9, 0)
    assert said["ranks"] == (3 if planner is Cutting else 1)
    assert typed(["verify", str(root)]) == 0
    found: dict[str, Any] = {name: {} for name in state()}
    assert load_state(root, ours := StateDict(found)).step == 12
    assert same(ours.extra, state())
    theirs = {name: torch.zeros_like(value) for name, value in state().items() if isinstance(value, torch.Tensor)}
    dcp.load(theirs, checkpoint_id=str(folder), no_dist=True)
    assert all(same(value, ours.extra[name]) for name, value in theirs.items())


class EarlyPickler(pickle.Pickler):
    """Python 3.11.0 to 3.11.3, of which Debian 12 has one, name a member of an enumeration by `getattr`."""

    def reducer_override(self, value: Any) -> Any:
        """See pickle.Pickler."""
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


@pytest.mark.parametrize("protocol", [2, 4])
def test_metadata_of_early_pythons_is_read(tmp_path: Path, protocol: int) -> None:
    metadata = written(tmp_path / "step-12") / ".metadata"
    words = io.BytesIO()
    EarlyPickler(words, protocol).dump(pickle.loads(metadata.read_bytes()))
    assert b"getattr" in words.getvalue()
    metadata.write_bytes(words.getvalue())
    assert import_checkpoint(tmp_path / "step-12", "dcp", tmp_path / "root").step == 12
    assert load_state(tmp_path / "root", ours := StateDict({name: {} for name in state()})).step == 12
    assert same(ours.extra, state())


@pytest.mark.parametrize("asked", [(torch.Size, "__init__"), (torch.float32, "itemsize"), (Encoding, "__class__")])
def test_getattr_of_a_pickle_takes_members_of_enumerations_only(
    tmp_path: Path, asked: tuple[Any, str], capsys: pytest.CaptureFixture[str]
) -> None:
    class Asks:
        def __reduce__(self) -> Any:
            return getattr, asked

    metadata = written(tmp_path / "step-12") / ".metadata"
    metadata.write_bytes(pickle.dumps(Asks()))
    assert typed(["import", str(tmp_path / "step-12"), "--from", "dcp", "--out", str(tmp_path / "root")]) == 1
    assert f"it asks for '{asked[1]}' of " in capsys.readouterr().err


def test_what_was_exported_comes_back_and_training_goes_on_with_it(shm: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters())
    held = State(model, optimizer, extra={"note": ("a", 1)})
    with Manager(tmp_path / "root") as manager:
        manager.restore(held)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert manager.save(7, held, on_busy="wait").wait("durable", 60)
        drawn = torch.rand(3)
    for to in ("dcp", "torch"):
        export(tmp_path / "root", to, tmp_path / f"{to}-7")
        assert import_checkpoint(tmp_path / f"{to}-7", to, tmp_path / to).step == 7
        ours, theirs = ({name: data for name, (_, _, data) in contents(tmp_path / one).items()} for one in ("root", to))
        assert {ours[name] for name in ours} == {theirs[name] for name in theirs}
        torch.manual_seed(9)
        other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, dtype=torch.bfloat16))
        moments = torch.optim.AdamW(other.parameters(), lr=0.5)
        again = State(other, moments, extra={})
        with Manager(tmp_path / to) as manager:
            assert manager.restore(again).next_step == 8
            assert torch.equal(torch.rand(3), drawn), "the generators came too"
            assert same(other.state_dict(), model.state_dict()) and again.extra == {"note": ("a", 1)}
            assert same(moments.state_dict(), optimizer.state_dict())
            assert manager.save(8, again, on_busy="wait").wait("durable", 60)


def test_weights_of_a_state_dict_below_a_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    import_checkpoint(written(tmp_path / "1", {"app": {"model": model.state_dict()}}), "dcp", tmp_path / "root")
    load_weights(tmp_path / "root", other := torch.nn.Linear(4, 4), inside="app.model")
    assert same(other.state_dict(), model.state_dict())


# --- what is refused --------------------------------------------------------------------------------------------


def cut(folder: Path) -> None:
    os.truncate(folder / "__0_0.distcp", (folder / "__0_0.distcp").stat().st_size - 1)


def lost(folder: Path) -> None:
    (folder / "__0_0.distcp").unlink()


def not_finished(folder: Path) -> None:
    (folder / ".metadata").unlink()


def metadata_cut(folder: Path) -> None:
    os.truncate(folder / ".metadata", 200)


def changed(folder: Path, change: Any) -> None:
    path = folder / ".metadata"
    said = pickle.loads(path.read_bytes())
    change(said)
    path.write_bytes(pickle.dumps(said))


def outside(folder: Path) -> None:
    (folder.parent / "other").write_bytes((folder / "__0_0.distcp").read_bytes())
    changed(folder, lambda said: [vars(info).update(relative_path="../other") for info in said.storage_data.values()])


def through_an_extension(folder: Path) -> None:
    changed(
        folder, lambda said: [vars(info).update(transform_descriptors=["zstd"]) for info in said.storage_data.values()]
    )


def one_without_a_place(folder: Path) -> None:
    changed(folder, lambda said: said.storage_data.pop(next(at for at in said.storage_data if at.fqn == "small")))


def of_another_type(folder: Path) -> None:
    changed(folder, lambda said: setattr(said.state_dict_metadata["small"].properties, "dtype", torch.uint8))


def a_box_less(folder: Path) -> None:
    changed(folder, lambda said: said.state_dict_metadata["app.weights.a"].chunks.pop())


def no_records(folder: Path) -> None:
    changed(folder, lambda said: said.__dict__.update(storage_data=[1]))


class Runs:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['RAN']}",)


def a_program(folder: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Runs()))


@pytest.mark.parametrize(
    "spoil, said",
    [
        (cut, "__0_0.distcp has "),
        (lost, "is incomplete: it lacks __0_0.distcp"),
        (not_finished, "has no .metadata"),
        (metadata_cut, ".metadata is damaged, or not torch's"),
        (outside, "in '../other', which is not in the directory"),
        (through_an_extension, "went through zstd"),
        (one_without_a_place, "does not give the position of small at [0]"),
        (of_another_type, "small at [0] is torch.float8_e4m3fn [3] in __0_0.distcp, and torch.uint8 [3]"),
        (a_box_less, "of [6, 8]"),
        (no_records, "storage_data is a list, expected dict"),
        (a_program, "it names posix.system"),
    ],
)
def test_what_is_not_whole_is_refused(
    tmp_path: Path, spoil: Any, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    folder, root = written(tmp_path / "step-12", planner=Cutting()), tmp_path / "root"
    spoil(folder)
    assert typed(["import", str(folder), "--from", "dcp", "--out", str(root)]) in (1, 2)
    found = capsys.readouterr().err
    assert said in found, found
    assert not list(root.glob("seq-*/MANIFEST.json")) and not (tmp_path / "ran").exists()


def test_classes_in_values_and_names_of_ours_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": 1, "path": {"x": Path("x")}}, "path.x in"),
        ({"save": {"mine": 1}}, "it has 'save'"),
        ({"rng": 3}, "it has 'rng'"),
    ]
    for number, (values, said) in enumerate(cases):
        folder = written(tmp_path / str(number), values)
        assert typed(["import", str(folder), "--from", "dcp", "--out", str(tmp_path / "root")]) == 2
        assert said in capsys.readouterr().err
    assert typed(["import", str(written(tmp_path / "x", {"a": 1})), "--from", "dcp", "--out", str(tmp_path / "r")]) == 2
    assert "--step NUMBER" in capsys.readouterr().err
    assert import_checkpoint(tmp_path / "x", "dcp", tmp_path / "r", step=4).step == 4


def everything(folder: Path) -> dict[str, Any]:
    """All bytes of tensors and all values, read as an import reads them."""
    with closing_imported_files() as files:
        found = dcp_format.inspect_folder(files, folder)
        read: dict[str, Any] = {}
        for name, boxes in found.chunks.items():
            for spec, source in boxes:
                data = bytearray(spec.nbytes)
                for at in range(0, len(data), 7):  # in steps, as chunks cut a tensor
                    source.read(memoryview(data)[at : at + 7], at)
                read[f"{name}{spec}"] = bytes(data)
        read.update((name, dcp_format.load_value(files, found, name)) for name in found.values)
        return read


@pytest.mark.full
def test_no_flipped_bit_of_a_file_changes_what_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "1", planner=Cutting())
    expected, path = everything(folder), folder / "__0_0.distcp"
    draw = random.Random(os.environ.get("HPK_TEST_RANDOM", "7"))
    refused = 0
    for at in draw.sample(range(path.stat().st_size), 400):
        bit = draw.randrange(8)
        flip(path, at, bit)
        try:
            assert everything(folder) == expected, f"bit {bit} of byte {at}"
        except HyperpodKitError:
            refused += 1
        flip(path, at, bit)
    assert everything(folder) == expected and refused > 50


def test_a_flipped_bit_of_the_metadata_ends_in_an_error_of_ours_or_in_the_same_tensors(tmp_path: Path) -> None:
    """It has no check sums: another letter in a name cannot be seen."""
    folder = written(tmp_path / "1", planner=Cutting())
    path = folder / ".metadata"
    draw = random.Random(os.environ.get("HPK_TEST_RANDOM", "8"))
    for at in draw.sample(range(path.stat().st_size), 300):
        flip(path, at, bit := draw.randrange(8))
        with contextlib.suppress(HyperpodKitError):
            everything(folder)
        flip(path, at, bit)
    everything(folder)


def test_tensors_without_check_sums_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        folder = written(tmp_path / "1", {"a": torch.ones(3), "b": torch.ones(4)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert typed(["import", str(folder), "--from", "dcp", "--out", str(tmp_path / "root")]) == 0
    assert "2 tensors without checksums" in capsys.readouterr().err


def test_a_tensor_that_is_damaged_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "1")
    path = folder / "__0_0.distcp"
    flip(path, path.read_bytes().index(state()["app"]["weights"]["a"].numpy().tobytes()) + 17)
    assert typed(["import", str(folder), "--from", "dcp", "--out", str(tmp_path / "root")]) == 1
    assert "Bad CRC-32" in capsys.readouterr().err and not list((tmp_path / "root").glob("seq-*"))
