from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from hyperpod_kit.checkpoint.agent.persist import seal
from hyperpod_kit.checkpoint.agent.shm import shm_slots
from hyperpod_kit.checkpoint.repository.format import digest, layout, shard
from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec
from hyperpod_kit.errors import CheckpointError

SPECS = [
    TensorSpec("odd", "F32", (3, 5)),
    TensorSpec("page", "BF16", (64, 32)),
    TensorSpec("none", "F32", (0, 4)),
    TensorSpec("scalar", "F32", ()),
    TensorSpec("bytes", "U8", (13,)),
    TensorSpec("long", "I64", (7,)),
    TensorSpec("line", "F32", (32,)),
]


def test_tensors_are_aligned_and_without_gaps() -> None:
    made = shard.lay_out(SPECS, rank=3, world=4, run_id="r", plan="p")
    at = len(made.head)
    assert at % 4096 == 0
    for placed in made.tensors:
        assert placed.begin == at and placed.end - placed.begin == placed.spec.nbytes
        assert placed.begin % shard.ITEM_BYTES[placed.spec.dtype] == 0
        at = placed.end
    assert at == made.data_end
    assert digest.split_size_into_data_and_leaf_count(made.size) == (made.data_end, 1)
    page = next(p for p in made.tensors if p.spec.name == "page")
    assert page.begin % 4096 == 0


def test_a_parser_parses_a_layout_once_and_a_changed_header_again() -> None:
    made = shard.lay_out(SPECS, rank=3, world=4, run_id="r", plan="p")
    first, second = (
        memoryview(bytearray(made.header(1, seq, seq) + bytes(made.size - len(made.head)))) for seq in (4, 5)
    )
    parser = shard.Parser()
    found = parser.parse_or_reuse_last(first)
    assert found == shard.parse(first) and parser.parse_or_reuse_last(second) is found
    second[bytes(second).index(b'"scalar"') + 1] ^= 1
    assert parser.parse_or_reuse_last(second).tensors != found.tensors
    second[8] ^= 1
    with pytest.raises(CheckpointError):
        parser.parse_or_reuse_last(second)


def test_a_save_changes_three_numbers_and_not_the_length() -> None:
    made = shard.lay_out(SPECS, rank=3, world=4, run_id="r", plan="p")
    head = made.header(2, 43, 110)
    assert len(head) == len(made.head)
    parsed = shard.parse(memoryview(head + bytes(made.size - len(head))))
    assert [int(parsed.meta[name]) for name in ("epoch", "seq", "step")] == [2, 43, 110]
    assert parsed.meta["rank"] == 3 and parsed.meta["digest"] == "blake2b"
    assert sorted(p.spec for p in parsed.tensors) == sorted(SPECS)


def test_names_that_are_taken_or_reserved_are_refused() -> None:
    for names in (["a", "a"], ["__hpk__.x"], ["__metadata__"]):
        with pytest.raises(CheckpointError, match="taken twice or reserved"):
            shard.lay_out([TensorSpec(n, "U8", (1,)) for n in names], rank=0, world=1, run_id="r", plan="p")


def test_damaged_headers_are_errors_of_ours() -> None:
    made = shard.lay_out(SPECS, rank=0, world=1, run_id="r", plan="p")
    whole = made.header(1, 1, 1) + bytes(made.size - len(made.head))
    dice = random.Random(3)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(made.head.rstrip()))] = dice.randrange(256)
        with contextlib.suppress(CheckpointError):
            shard.parse(memoryview(damaged))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_safetensors_and_torch_read_a_shard_without_us(capture, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    import torch.distributed.checkpoint as dcp

    expected = {}
    for rank in range(2):
        slot: shm_slots.Slot = capture(rank=rank, world=2, chunk=4096)
        page = seal.seal(slot)
        (tmp_path / "out").mkdir(exist_ok=True)
        path = tmp_path / "out" / layout.shard_file(rank)
        path.write_bytes(slot.image[: page.shard.size])
        loaded = safetensors.load_file(path)
        assert (
            loaded[shard.digests_tensor_name(rank)].numel()
            == 8 * digest.split_size_into_data_and_leaf_count(page.shard.size, 4096)[1]
        )
        for placed in shard.parse(slot.image).tensors:
            ours = torch.frombuffer(bytearray(slot.image[placed.begin : placed.end]), dtype=torch.float32)
            assert torch.equal(loaded[placed.spec.name].view(torch.int32), ours.view(torch.int32))
            expected[placed.spec.name] = ours
    got = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(got, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / "out")), no_dist=True)
    for name, tensor in expected.items():
        assert torch.equal(got[name].view(torch.int32), tensor.view(torch.int32))
