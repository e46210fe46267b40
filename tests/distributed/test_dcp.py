"""Our files through torch.distributed.checkpoint: our Reader and Writer, and torch's own reader of safetensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import sharded_job  # noqa: E402
from tests.support.rows import full  # noqa: E402

pytestmark = pytest.mark.distributed


def tensors() -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "a": torch.randn(50, 7),
        "half": torch.randn(33).to(torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(6, 4).t(),
        "bits": torch.rand(9) > 0.5,
        "fp8": torch.randn(16).to(torch.float8_e4m3fn),
        "z": torch.randn(3, 5, dtype=torch.complex64),
    }


def sharded(values: dict[str, Any], dim: int = 0) -> dict[str, Any]:
    """Each rank its part, where there is something to divide."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    return {
        name: distribute_tensor(value, mesh, [Shard(min(dim, value.dim() - 1))])
        if value.dim() and value.dtype.itemsize > 1 and not value.is_complex()
        else value
        for name, value in values.items()
    }


def blank(values: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros(value.shape, dtype=torch.float32).to(value.dtype) for name, value in values.items()}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found.items()}
    return all(sharded_job.equal(whole[name], value) for name, value in wanted.items())


def save(root: str, dim: int) -> list[str]:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.writer import Writer

    dcp.save(
        {"model": sharded(tensors(), dim), "note": {"step": 7, "why": [1, "x"]}}, storage_writer=Writer(root, step=7)
    )
    return sorted(os.listdir(root))


def load(root: str, dim: int) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader
    from hyperpod_kit.checkpoint.repository.store import posix

    read = []
    real = posix.FileReader.read_into

    def counting(self: Any, view: memoryview, offset: int) -> int:
        got = real(self, view, offset)
        read.append(got)
        return got

    posix.FileReader.read_into = counting  # type: ignore[method-assign]
    into = {"model": sharded(blank(tensors()), dim), "note": {"step": 0, "why": []}}
    dcp.load(into, storage_reader=Reader(root))
    return {"same": same(into["model"], tensors()), "note": into["note"], "read": sum(read)}


@pytest.mark.parametrize(("writers", "readers", "dims"), [(2, 3, (0, 0)), *full((3, 2, (0, 1)), (2, 2, (1, 0)))])
def test_what_dcp_saves_is_committed_and_loads_on_other_ranks(
    tmp_path: Path, writers: int, readers: int, dims: tuple[int, int]
) -> None:
    from hyperpod_kit.checkpoint.repository import selection
    from hyperpod_kit.checkpoint.repository.read import verify

    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, writers, save, root, dims[0])
    newest = selection.newest_valid(root)
    assert newest.step == 7 and verify.read_manifest(root, newest.checkpoint_id).index is not None
    found = sharded_job.run(tmp_path, readers, load, root, dims[1])
    assert all(answer["same"] and answer["note"] == {"step": 7, "why": [1, "x"]} for answer in found), found
    # Every byte once: headers, data and leaves, rounded up to pages; not once per rank.
    size = sum(path.stat().st_size for path in Path(root).glob("*/shard-*"))
    pages = 4096 * 4 * writers * readers
    assert sum(answer["read"] for answer in found) <= size + pages


def load_damaged(root: str) -> str:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    into = {"model": sharded(blank(tensors()))}
    try:
        dcp.load(into, storage_reader=Reader(root))
    except dcp.api.CheckpointException as err:
        return str(err)
    return "loaded"


def test_a_flipped_byte_is_an_error_on_every_rank(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    sharded_job.run(tmp_path, 2, save, root, 0)
    path = next(Path(root).glob("*/shard-00001.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = sharded_job.run(tmp_path, 2, load_damaged, root)
    assert all("shard-00001.safetensors bytes" in answer and "expected" in answer for answer in found), found


def save_with_manager(root: str) -> bool:
    from hyperpod_kit.checkpoint import Manager, State

    model, optimizer = sharded_job.build("fsdp2")
    sharded_job.step(model, optimizer, 1)
    manager = Manager(root)
    state = State(model, optimizer)
    manager.restore(state)
    assert manager.save(1, state, on_busy="wait").wait("durable", 60)
    return manager.close()


def load_with_dcp(root: str) -> bool:
    """A model without any wrapper, from what FSDP2 saved; torch's own reader of safetensors must agree."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    ours, theirs = sharded_job.build("plain")[0], sharded_job.build("plain")[0]
    for model in (ours, theirs):
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
    into = {"model": ours.state_dict()}
    dcp.load(into, storage_reader=Reader(root))
    folder = next(Path(root).glob("seq-*"))
    weights = {f"model.{name}": value for name, value in theirs.state_dict().items() if name != "tied.weight"}
    dcp.load(weights, storage_reader=HuggingFaceStorageReader(str(folder)))
    agree = all(sharded_job.equal(into["model"][name[6:]], value) for name, value in weights.items())
    return (
        agree
        and sharded_job.equal(into["model"]["tied.weight"], into["model"]["first.weight"])
        and bool(ours.first.weight.abs().sum() > 0)
    )


def test_a_plain_model_loads_what_fsdp2_saved_and_torch_reads_the_same(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    assert sharded_job.run(tmp_path, 2, save_with_manager, root) == [True, True]
    assert sharded_job.run(tmp_path, 1, load_with_dcp, root) == [True]
    from safetensors import safe_open

    for path in Path(root).glob("*/shard-*.safetensors"):
        with safe_open(str(path), "pt") as file:
            assert any(name.startswith("model.") for name in file.keys())  # noqa: SIM118


def spread(order: list[int], values: Any) -> Any:
    """A ShardedTensor over the rows of `values`, the chunks on these ranks: several a rank."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    made = sharded_tensor.zeros(ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in order]), *values.shape)
    for part in made.local_shards():
        begin = part.metadata.shard_offsets[0]
        part.tensor.copy_(values[begin : begin + part.metadata.shard_sizes[0]])
    return made


def save_spread(root: str, order: list[int]) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.writer import Writer

    writer = Writer(root + "/elsewhere", step=1)
    values = torch.arange(44.0).view(11, 4)
    dcp.save({"w": spread(order, values), "half": values.half(), "n": 3}, storage_writer=writer, checkpoint_id=root)
    meta = writer.storage_meta()
    return {"root": meta.checkpoint_id, "attempt": meta.save_id}


def load_spread(root: str, order: list[int] | None) -> dict[str, Any]:
    """As a ShardedTensor divided in another way, or as a plain tensor; from the root and from the attempt's path."""
    import torch.distributed.checkpoint as dcp

    from hyperpod_kit.checkpoint.dcp.reader import Reader

    values, right, meta = torch.arange(44.0).view(11, 4), [], None
    attempt = next(path for path in Path(root).glob("seq-*"))
    for reader, where in (
        (Reader(root + "/elsewhere"), root),
        (Reader(root), str(attempt)),
        (Reader(attempt), None),
        (Reader(root), attempt.name),
    ):
        into: dict[str, Any] = {
            "half": torch.zeros(11, 4).half(),
            "n": 0,
            "w": torch.zeros(11, 4) if order is None else spread(order, torch.zeros(11, 4)),
        }
        dcp.load(into, storage_reader=reader, checkpoint_id=where)
        wanted = values if order is None else spread(order, values)
        found = [into["w"]] if order is None else [part.tensor for part in into["w"].local_shards()]
        parts = [wanted] if order is None else [part.tensor for part in wanted.local_shards()]
        right += [torch.equal(a, b) for a, b in zip(found, parts, strict=True)]
        right += [torch.equal(into["half"], values.half()), into["n"] == 3]
        meta = reader.read_metadata().storage_meta
    assert meta is not None
    return {"right": right, "root": meta.checkpoint_id, "attempt": meta.save_id}


@pytest.mark.parametrize(
    ("writers", "order", "readers", "other"),
    [(2, [0, 1, 0], 2, [1, 1, 0, 0]), *full((2, [1, 1, 1, 0], 1, None), (1, [0, 0, 0], 2, [1, 0]))],
)
def test_several_shards_of_one_tensor_on_a_rank(
    tmp_path: Path, writers: int, order: list[int], readers: int, other: list[int] | None
) -> None:
    from hyperpod_kit.checkpoint.commands import cli
    from hyperpod_kit.checkpoint.repository import selection
    from hyperpod_kit.checkpoint.repository.read import verify

    root = str(tmp_path / "root")
    wrote = sharded_job.run(tmp_path, writers, save_spread, root, order)
    newest = selection.newest_valid(root)
    assert all(answer == {"root": root, "attempt": newest.checkpoint_id} for answer in wrote)
    assert verify.read_manifest(root, newest.checkpoint_id).world == sum(
        max(order.count(rank), 1) for rank in range(writers)
    )
    assert not Path(root, "elsewhere").exists() and cli.main(["verify", root]) == 0
    for answer in sharded_job.run(tmp_path, readers, load_spread, root, other):
        assert all(answer["right"]) and answer["root"] == f"{root}/{newest.checkpoint_id}"
        assert answer["attempt"] == newest.checkpoint_id
