"""What torch.distributed.checkpoint calls a checkpoint_id."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from hyperpod_kit.checkpoint.dcp.reader import Reader  # noqa: E402
from hyperpod_kit.checkpoint.dcp.writer import Writer  # noqa: E402
from hyperpod_kit.errors import CheckpointError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
ATTEMPT = "seq-000001.step-0000000002.e1-abcdef"


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("/ckpt", True),
        ("relative/ckpt", True),
        (Path("/ckpt"), True),
        (f"/ckpt/{ATTEMPT}", True),
        (ATTEMPT, True),
        ("memory://x", True),
        ("abc://abc.abc", False),
        ("gs://bucket/x", False),
        ("", False),
        (7, False),
        (None, False),
    ],
)
def test_only_what_can_be_opened_is_a_checkpoint_id(name: object, valid: bool) -> None:
    for kind in (Reader, Writer):
        assert kind.validate_checkpoint_id(name) is valid  # type: ignore[arg-type]


def save(root: Path, value: float, **options: object) -> str:
    writer = Writer(root, step=int(value))
    dcp.save({"w": torch.full((3,), value)}, storage_writer=writer, no_dist=True, **options)
    assert writer.save_id is not None
    return writer.save_id


def load(reader: Reader, checkpoint_id: object = None) -> float:
    into = {"w": torch.zeros(3)}
    dcp.load(into, storage_reader=reader, no_dist=True, checkpoint_id=checkpoint_id)
    return float(into["w"][0])


def test_a_root_an_attempts_path_and_a_name_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = save(one, 1.0)
    save(tmp_path / "nowhere", 2.0, checkpoint_id=one)
    save(two, 3.0, checkpoint_id=str(two))
    assert not (tmp_path / "nowhere").exists()
    reader = Reader(one)
    assert load(reader) == 2.0 == load(reader, one) == load(reader, f"{one}/")
    assert load(reader, first) == 1.0 == load(reader, one / first)
    assert load(reader, one) == 2.0  # the newest again
    assert load(reader, two) == 3.0 == load(reader)
    assert load(Reader(one, first), one) == 1.0  # the root says nothing against the attempt that was chosen
    monkeypatch.chdir(one)
    assert load(Reader(first)) == 1.0 == load(Reader("."), one / first)

    reader = Reader(one)
    before = reader.load_id
    reader.reset()
    meta = reader.read_metadata().storage_meta
    assert meta is not None and meta.checkpoint_id == str(one) and meta.load_id == reader.load_id != before
    reader.reset(meta.save_id)
    meta = reader.read_metadata().storage_meta
    assert meta is not None and str(meta.checkpoint_id) == f"{one}/{meta.save_id}"


def test_a_save_is_refused_where_it_could_not_be_found_again(tmp_path: Path) -> None:
    name = save(tmp_path, 1.0)
    for wrong in (name, tmp_path / name):
        with pytest.raises(CheckpointError, match="names an attempt") as caught:
            save(tmp_path, 2.0, checkpoint_id=wrong)
        assert str(tmp_path) in str(caught.value.hint)
    with pytest.raises(CheckpointError, match="abc://x is not a checkpoint root"):
        Writer("abc://x", step=1)
    with pytest.raises(CheckpointError, match="without collectives"):
        Writer(tmp_path, step=1).set_up_storage_writer(True, rank=0, use_collectives=False)
    assert sorted(path.name for path in tmp_path.glob("seq-*")) == [name]
