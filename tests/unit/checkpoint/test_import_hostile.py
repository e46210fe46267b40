"""What a hostile hand may write in the place of another program's checkpoint: an error that names it, nothing run,
nothing committed, and no memory taken for what a few bytes claim."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint import metadata as torchs  # noqa: E402

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import cli  # noqa: E402
from tests.support.content import contents  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")


def refused(source: Path | str, kind: str, root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What is said; nothing is committed."""
    words = ["import", str(source), "--from", kind, "--step", "1", "--out", str(root), *more]
    assert ending.run(lambda: cli.main(words)) in (1, 2, 3)
    assert not list(root.glob("seq-*/MANIFEST.json"))
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


class Runs:
    """A pickle of it makes a file."""

    def __init__(self, ran: Path) -> None:
        self._ran = ran

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._ran}",)


def saved(folder: Path) -> Path:
    dcp.save({"a": torch.arange(6.0), "word": "x"}, checkpoint_id=str(folder), no_dist=True)
    return folder


# --- pickles ----------------------------------------------------------------------------------------------------


def in_torch_save(ran: Path, folder: Path) -> tuple[Path, str]:
    torch.save({"model": {"a": torch.ones(2)}, "more": Runs(ran)}, folder / "x.pt")
    return folder / "x.pt", "torch"


def in_an_old_file(ran: Path, folder: Path) -> tuple[Path, str]:
    torch.save({"model": Runs(ran)}, folder / "x.pt", _use_new_zipfile_serialization=False)
    return folder / "x.pt", "torch"


def plainly(ran: Path, folder: Path) -> tuple[Path, str]:
    (folder / "x.pt").write_bytes(pickle.dumps(Runs(ran)))
    return folder / "x.pt", "torch"


def in_metadata(ran: Path, folder: Path) -> tuple[Path, str]:
    (saved(folder / "dcp") / ".metadata").write_bytes(pickle.dumps(Runs(ran)))
    return folder / "dcp", "dcp"


def in_planner_data(ran: Path, folder: Path) -> tuple[Path, str]:
    path = saved(folder / "dcp") / ".metadata"
    said = pickle.loads(path.read_bytes())
    said.planner_data = Runs(ran)
    path.write_bytes(pickle.dumps(said))
    return folder / "dcp", "dcp"


def in_the_place_of(name: str, ran: Path, folder: Path, data: bytes) -> tuple[Path, str]:
    """`data` behind the file's end, and said to be that item."""
    path = saved(folder / "dcp") / ".metadata"
    said = pickle.loads(path.read_bytes())
    with (folder / "dcp" / "__0_0.distcp").open("ab") as file:
        at = file.tell()
        file.write(data)
    for index, info in said.storage_data.items():
        if index.fqn == name:
            info.offset, info.length = at, len(data)
    path.write_bytes(pickle.dumps(said))
    return folder / "dcp", "dcp"


def in_a_value(ran: Path, folder: Path) -> tuple[Path, str]:
    data = io.BytesIO()
    torch.save(Runs(ran), data)
    return in_the_place_of("word", ran, folder, data.getvalue())


def in_a_tensor(ran: Path, folder: Path) -> tuple[Path, str]:
    data = io.BytesIO()
    torch.save(Runs(ran), data)
    return in_the_place_of("a", ran, folder, data.getvalue())


def in_common(ran: Path, folder: Path) -> tuple[Path, str]:
    config = {"sharded_backend": "torch_dist", "common_backend": "torch"}
    (saved(folder / "dcp") / "metadata.json").write_text(json.dumps(config))
    torch.save({"step": 1, "args": Runs(ran)}, folder / "dcp" / "common.pt")
    return folder / "dcp", "megatron"


def in_deepspeeds(ran: Path, folder: Path) -> tuple[Path, str]:
    (folder / "t1").mkdir()
    (folder / "latest").write_text("t1")
    torch.save({"module": Runs(ran)}, folder / "t1" / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": Runs(ran)}, folder / "t1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return folder, "deepspeed"


@pytest.mark.parametrize(
    "place",
    [
        in_torch_save,
        in_an_old_file,
        plainly,
        in_metadata,
        in_planner_data,
        in_a_value,
        in_a_tensor,
        in_common,
        in_deepspeeds,
    ],
)
def test_nothing_of_a_pickle_is_run(tmp_path: Path, place: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pickle.loads(pickle.dumps(Runs(tmp_path / "does")))
    assert (tmp_path / "does").exists(), "such a pickle does run where it is opened"
    source, kind = place(tmp_path / "ran", tmp_path)
    for more in ((), ("--dry-run",)):
        refused(source, kind, tmp_path / "root", capsys, *more)
    assert not (tmp_path / "ran").exists()


def test_no_class_of_torch_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The state that a pickle gives to a thing may be meant for a class that all share."""
    class_of = f"c{torchs.Metadata.__module__}\nMetadata\n".encode()
    state = pickle.MARK + pickle.NONE + pickle.EMPTY_DICT + b"X\x05\x00\x00\x00added" + pickle.NEWTRUE + b"s"
    (saved(tmp_path / "dcp") / ".metadata").write_bytes(
        pickle.PROTO + b"\x02" + class_of + state + pickle.TUPLE + pickle.BUILD + pickle.STOP
    )
    assert "it changes" in refused(tmp_path / "dcp", "dcp", tmp_path / "root", capsys)
    assert not hasattr(torchs.Metadata, "added")


@pytest.mark.parametrize(
    "words",
    [
        pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", (1 << 32) - 2) + pickle.STOP,
        pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 36) + pickle.STOP,
        pickle.FRAME + struct.pack("<Q", 1 << 62) + pickle.STOP,
        pickle.BINBYTES8 + struct.pack("<Q", 1 << 36) + pickle.STOP,
        pickle.LONG4 + struct.pack("<i", (1 << 31) - 1) + pickle.STOP,
    ],
)
def test_a_few_bytes_take_no_memory(tmp_path: Path, words: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (saved(tmp_path / "dcp") / ".metadata").write_bytes(pickle.PROTO + b"\x05" + words)
    assert "is damaged, or not torch's" in refused(tmp_path / "dcp", "dcp", tmp_path / "root", capsys)
    folder = tmp_path / "tensor"
    folder.mkdir()
    source, kind = in_the_place_of("a", tmp_path, folder, zipped({"x/data.pkl": pickle.PROTO + b"\x05" + words}))
    assert "not as torch.save writes tensors" in refused(source, kind, tmp_path / "root", capsys)


def zipped(entries: dict[str, bytes], compressed: bool = False) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, held in entries.items():
            archive.writestr(name, held)
    return data.getvalue()


def test_what_is_compressed_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = zipped({"x/data.pkl": bytes(64 << 20)}, compressed=True)
    for name in ("a", "word"):
        folder = tmp_path / name
        folder.mkdir()
        source, kind = in_the_place_of(name, tmp_path, folder, bomb)
        assert "compressed" in refused(source, kind, tmp_path / "root", capsys)
    (tmp_path / "x.pt").write_bytes(bomb)
    assert "compressed" in refused(tmp_path / "x.pt", "torch", tmp_path / "root", capsys)


# --- what a few bytes claim -------------------------------------------------------------------------------------


def test_items_that_are_one_in_memory_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, tensor in enumerate(
        [
            torch.zeros(1).expand(1 << 40),
            torch.zeros(8).as_strided((1 << 20, 1 << 20), (0, 0)),
            torch.zeros(9).unfold(0, 4, 1),
        ]
    ):
        torch.save({"a": tensor}, tmp_path / f"{number}.pt")
        assert "partly share memory" in refused(tmp_path / f"{number}.pt", "torch", tmp_path / "root", capsys)


def changed(folder: Path, change: Any) -> Path:
    path = folder / ".metadata"
    said = pickle.loads(path.read_bytes())
    change(said)
    path.write_bytes(pickle.dumps(said))
    return folder


def two_of_one_place(said: Any) -> None:
    index = next(at for at in said.storage_data if at.fqn == "a")
    said.state_dict_metadata["b"] = said.state_dict_metadata["a"]
    said.storage_data[torchs.MetadataIndex("b", index.offset)] = said.storage_data[index]


def before_the_beginning(said: Any) -> None:
    index = next(at for at in said.storage_data if at.fqn == "a")
    entry = said.state_dict_metadata["a"]
    entry.size = torch.Size([7])
    object.__setattr__(entry.chunks[0], "offsets", (-1,))
    said.storage_data[torchs.MetadataIndex("a", torch.Size([-1]))] = said.storage_data.pop(index)


def twice_the_box(said: Any) -> None:
    said.state_dict_metadata["a"].chunks *= 2


def larger(said: Any) -> None:
    said.state_dict_metadata["a"].size = torch.Size([1 << 40])


def a_number_for_a_name(said: Any) -> None:
    said.state_dict_metadata[7] = said.state_dict_metadata.pop("a")


def a_path_without_an_end(said: Any) -> None:
    said.planner_data["a"] = ("x",) * 100_000


def a_value_and_a_container(said: Any) -> None:
    said.planner_data.update(a=("p",), word=("p", "q"))


def two_at_one_path(said: Any) -> None:
    said.planner_data.update(a=("p",), word=("p",))


def a_reserved_name(said: Any) -> None:
    index = next(at for at in said.storage_data if at.fqn == "a")
    said.state_dict_metadata["__metadata__"] = said.state_dict_metadata.pop("a")
    said.storage_data[torchs.MetadataIndex("__metadata__", index.offset)] = said.storage_data.pop(index)


def an_absolute_place(said: Any) -> None:
    for info in said.storage_data.values():
        info.relative_path = "/etc/passwd"


@pytest.mark.parametrize(
    "change, said",
    [
        (two_of_one_place, "a and b in one place of"),
        (before_the_beginning, "extents that it cannot have"),
        (twice_the_box, "tensor a: "),
        (larger, "items of [1099511627776]"),
        (a_number_for_a_name, "a name is a int, expected str"),
        (a_path_without_an_end, "has the path"),
        (a_value_and_a_container, "below a value"),
        (two_at_one_path, "two items at"),
        (a_reserved_name, "taken twice or reserved"),
        (an_absolute_place, "which is not in the directory"),
    ],
)
def test_a_metadata_that_lies_is_refused(
    tmp_path: Path, change: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(saved(tmp_path / "dcp"), change)
    for more in ((), ("--dry-run",)):
        found = refused(folder, "dcp", tmp_path / "root", capsys, *more)
        assert said in found, found


# --- what lies in the place of a file ---------------------------------------------------------------------------


def safetensors(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    "header, data, said",
    [
        (
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
            4,
            "it has the key 'a' twice",
        ),
        (b'{"a":{"dtype":"F32","shape":[1],"dtype":"I32","data_offsets":[0,4]}}', 4, "it has the key 'dtype' twice"),
        (
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            4,
            "and what is before it ends at 4",
        ),
        (b'{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}', 4, "extents that it cannot have"),
        (b'{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}', 4, "extents that it cannot have"),
        (
            b'{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
            0,
            "more numbers than there can be",
        ),
        (b'{"a":{"dtype":"U8","shape":[4294967296,1024],"data_offsets":[0,0]}}', 0, "a lies at 0..0"),
        (b'{"a":[]}', 0, "is damaged, or no safetensors"),
        (b"[" * 100_000, 0, "nested too deeply"),
        (b"[]", 0, "is damaged, or no safetensors"),
        (b'{"__metadata__":{"x":"y"}}', 4, "its tensors end at"),
    ],
)
def test_a_header_that_lies_is_refused(
    tmp_path: Path, header: bytes, data: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors(header, bytes(data)))
    found = refused(tmp_path / "x.safetensors", "safetensors", tmp_path / "root", capsys)
    assert said in found, found


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".metadata", "__0_0.distcp"):
        folder = saved(tmp_path / f"dcp-{name}")
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert name in refused(folder, "dcp", tmp_path / "root", capsys)
    for kind, name in (("safetensors", "x.safetensors"), ("torch", "x.pt")):
        os.mkfifo(tmp_path / name)
        assert "is not a file" in refused(tmp_path / name, kind, tmp_path / "root", capsys)
    models = tmp_path / "models"
    models.mkdir()
    (models / "model.safetensors").write_bytes(safetensors(b"{}", b""))
    (models / "config.json").symlink_to("/dev/zero")
    (models / "trainer_state.json").symlink_to("/dev/zero")
    words = ["import", str(models), "--from", "huggingface", "--out", str(tmp_path / "r"), "--dry-run"]
    assert ending.run(lambda: cli.main(words)) == 0, "what is not a file is not read"


def test_a_link_is_followed_as_caches_have_them_and_a_path_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs, models = tmp_path / "blobs", tmp_path / "snapshots"
    for folder in (blobs, models):
        folder.mkdir()
    header = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    (blobs / "0a1b").write_bytes(safetensors(header, b"1234"))
    (models / "model.safetensors").symlink_to("../blobs/0a1b")
    words = ["import", str(models), "--from", "huggingface", "--out", str(tmp_path / "root")]
    assert ending.run(lambda: cli.main(words)) == 0
    assert contents(tmp_path / "root")["model.a"][2] == b"1234"
    (models / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../blobs/0a1b"}}')
    assert "it lacks '../blobs/0a1b'" in refused(models, "huggingface", tmp_path / "r2", capsys)
    for config in (b"\xff\xfe", b"x" * (5 << 20)):
        (models / "model.safetensors.index.json").unlink(missing_ok=True)
        (models / "config.json").write_bytes(config)
        assert "config.json" in refused(models, "huggingface", tmp_path / "r2", capsys)


def test_a_url_is_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("dcp", "safetensors", "deepspeed"):
        assert "is not a path in a file system" in refused("s3://bucket/run/step-1", kind, tmp_path / "root", capsys)


# --- names ------------------------------------------------------------------------------------------------------


def test_two_tensors_that_would_have_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = torch.zeros(2), torch.ones(2)
    cases = [
        {"m": {"a.b": one, "a": {"b": other}}, "n": 1},
        {"m": {1: one, "1": other}, "n": 1},
        {"m": {"a.b": one, "a": {"b": one}}, "n": 1},
    ]
    for number, values in enumerate(cases):
        torch.save(values, tmp_path / f"{number}.pt")
        assert "second tensor of that name" in refused(tmp_path / f"{number}.pt", "torch", tmp_path / "root", capsys)


def test_names_of_all_kinds_come_back(tmp_path: Path) -> None:
    names = ["größe", "層.0.重み", "a/../b", "tab\there", "", "x" * 5000, "\U0001f600", "quote\"s'", "new\nline"]
    model = {name: torch.full((2,), float(number)) for number, name in enumerate(names)}
    torch.save(model, tmp_path / "modèle-7.pt")
    dcp.save({"model": model}, checkpoint_id=str(tmp_path / "schritt-7-größe"), no_dist=True)
    for kind, source in (("torch", "modèle-7.pt"), ("dcp", "schritt-7-größe")):
        root = tmp_path / f"wurzel-ü-{kind}"
        words = ["import", str(tmp_path / source), "--from", kind, "--out", str(root)]
        assert ending.run(partial(cli.main, words)) == 0
        out = tmp_path / f"out-ß-{kind}.safetensors"
        words = ["export", str(root), "--to", "safetensors", "--out", str(out)]
        assert ending.run(partial(cli.main, words)) == 0
        from safetensors.torch import load_file

        found = load_file(out)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            name: tensor.tolist() for name, tensor in model.items()
        }
