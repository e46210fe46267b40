"""Boxes of tensors over the engine: cut alike from memory and storage, cut otherwise from storage, past damage, and as
Megatron-core's own files. Its adapter: tests/unit/job/test_frameworks.py."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit.checkpoint import Manager, Restored  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.repository.records import catalog  # noqa: E402
from hyperpod_kit.checkpoint.state.sharded_state import (  # noqa: E402
    LocalShard,
    ShardedState,
    ShardPlacement,
    agree_placement,
    torch_load_with_length,
    torch_save_with_length_and_padding,
)
from hyperpod_kit.errors import CheckpointError, StateNotSerializable, UsageError  # noqa: E402
from tests.support.damage import flip  # noqa: E402
from tests.support.rows import share  # noqa: E402

WEIGHT = torch.arange(6.0 * 8).view(6, 8)
STACK = torch.arange(2.0 * 4, dtype=torch.bfloat16).view(2, 4)


def boxes(*rows: int, value: float = 0.0) -> list[LocalShard]:
    """The weight cut into rows of these heights, a stack of two tensors, and one that is whole."""
    at, made = 0, []
    for height in rows:
        made.append(LocalShard("w", WEIGHT[at : at + height] + value, (6, 8), (at, 0)))
        at += height
    made += [LocalShard("stack", STACK[number] + value, (2, 4), (number, 0)) for number in range(2)]
    return [*made, LocalShard("whole", torch.tensor(float(value)), (), ())]


def blank(found: list[LocalShard]) -> list[LocalShard]:
    return [one._replace(tensor=torch.full_like(one.tensor, -1)) for one in found]


def filled(manager: Manager, state: ShardedState, found: list[LocalShard], values: dict[str, Any], note: Any) -> None:
    known = agree_placement(manager.ranks, found, ["note"])
    state.set_contents(found, {"note": torch_save_with_length_and_padding("note", note)}, values, known)


def save(root: Path, steps: int = 2) -> None:
    with Manager(root) as manager:
        state = ShardedState()
        filled(manager, state, boxes(2, 4), {}, None)
        manager.restore(state)
        for step in range(1, steps + 1):
            filled(manager, state, boxes(2, 4, value=step), {"at": step, "own": torch.tensor([step])}, {"lr": step / 8})
            assert manager.save(step, state, on_busy="wait").wait("durable", 60)


def load(root: Path, wanted: list[LocalShard]) -> tuple[Any, ShardedState]:
    with Manager(root) as manager:
        state = ShardedState()
        filled(manager, state, wanted, {}, None)
        return manager.restore(state), state


@pytest.fixture
def root(shm: Path, tmp_path: Path) -> Path:
    save(tmp_path / "root")
    return tmp_path / "root"


@pytest.mark.parametrize("rows", share([pytest.param(rows) for rows in ((1, 2, 3), (2, 4), (6,))], 1))
def test_boxes_are_filled_however_they_are_cut(root: Path, rows: tuple[int, ...]) -> None:
    wanted = blank(boxes(*rows))
    got, state = load(root, wanted)
    assert isinstance(got, Restored) and got.step == 2
    for one, expected in zip(wanted, boxes(*rows, value=2), strict=True):
        assert torch.equal(one.tensor, expected.tensor), one.name
    assert state.values == {"at": 2, "own": torch.tensor([2])}
    assert torch_load_with_length(state.object_data["note"]) == {"lr": 0.25}


def test_a_stack_is_read_as_one_tensor_and_columns_out_of_rows(root: Path) -> None:
    whole = LocalShard("stack", torch.zeros(2, 4, dtype=torch.bfloat16), (2, 4), (0, 0))
    columns = LocalShard("w", torch.zeros(6, 3), (6, 8), (0, 5))
    load(root, [whole, columns])
    assert torch.equal(whole.tensor, STACK + 2) and torch.equal(columns.tensor, WEIGHT[:, 5:] + 2)


def test_a_flexible_tensor_takes_what_both_have(root: Path) -> None:
    wider = LocalShard("w", torch.full((8, 8), 7.0), (8, 8), (0, 0), flexible=True)
    load(root, [wider])
    assert torch.equal(wider.tensor[:6], WEIGHT + 2) and not wider.tensor[6:].any()
    with pytest.raises(CheckpointError, match=r"w is \[6, 8\] in the checkpoint, \[8, 8\] here"):
        load(root, [wider._replace(flexible=False)])
    with pytest.raises(CheckpointError, match="the checkpoint has no other"):
        load(root, [wider._replace(key="other")])


def test_a_flipped_byte_goes_back_for_every_cut_and_the_log_says_so(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hyperpod_kit.checkpoint")
    newest = next(entry for entry in catalog.list_checkpoints(str(root)) if entry.name.step == 2)
    flip(next((root / newest.checkpoint_id).glob("shard-*")), -200)
    wanted = blank(boxes(3, 3))
    got, state = load(root, wanted)
    assert isinstance(got, Restored) and got.step == 1 and state.values["at"] == 1
    assert torch.equal(wanted[0].tensor, WEIGHT[:3] + 1)
    messages = [record.getMessage() for record in caplog.records]
    said = [message for message in messages if message.startswith("restore: ")]
    begins = [f"reading {newest.checkpoint_id}", f"abandoned {newest.checkpoint_id}: in storage", "reading", "done"]
    assert [line.startswith(f"restore: {begin}") for line, begin in zip(said, begins, strict=True)] == [True] * 4, said


def test_what_was_not_met_and_what_only_a_pickle_brings_back_are_refused(shm: Path, tmp_path: Path) -> None:
    with Manager(tmp_path / "root") as manager:
        state = ShardedState()
        filled(manager, state, boxes(6), {}, None)
        manager.restore(state)
        state.set_contents(boxes(3, 3), {}, {}, ShardPlacement({}, {}))
        with pytest.raises(CheckpointError, match="did not exist at the load"):
            manager.save(1, state)
    with pytest.raises(StateNotSerializable, match="weights_only=True"):
        torch_save_with_length_and_padding("path", Path("x"))


@pytest.mark.parametrize("pickled", [b"", b".", b"\x80\x02.", b"PK\x03\x04", b"\x80\x04c\x00."], ids=repr)
def test_what_is_no_object_of_torchs_is_an_error_of_ours(pickled: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"an object in the checkpoint cannot be read by torch: ."):
        torch_load_with_length(len(pickled).to_bytes(8, "little") + pickled)


def test_export_puts_the_tensors_together(root: Path, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    export(str(root), "megatron", tmp_path / "out")
    found = {"w": torch.zeros(6, 8), "stack": torch.zeros(2, 4, dtype=torch.bfloat16)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path / "out"), no_dist=True)
    assert torch.equal(found["w"], WEIGHT + 2) and torch.equal(found["stack"], STACK + 2)
    assert torch.load(tmp_path / "out" / "common.pt", weights_only=True)["at"] == 2
    with Manager(tmp_path / "other") as manager:
        from hyperpod_kit.checkpoint import State

        state = State(extra={"x": 1})
        manager.restore(state)
        assert manager.save(1, state, on_busy="wait").wait("durable", 60)
    with pytest.raises(UsageError, match="was not written by Megatron-core"):
        export(str(tmp_path / "other"), "megatron", tmp_path / "no")
