"""Checkpoints that are whole by every digest and say what no program of ours says: who compares them, or loads weights
of them, gets an error of that checkpoint or an older one, and words that can be shown."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Dict

import pytest

pytest.importorskip("torch")
import torch

from hyperpod_kit.checkpoint import load_state
from hyperpod_kit.checkpoint.diffing.compare import CheckpointAt, CheckpointDiff, diff
from hyperpod_kit.checkpoint.repository.format import compact_index, digest, manifest, rows, shard_table
from hyperpod_kit.checkpoint.repository.format.shard import Placed, TensorSpec
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.checkpoint.weights.weights import load_weights
from hyperpod_kit.errors import CheckpointError
from tests.hostile.fuzz.tensor_parsers import ATTEMPTS, BODY, TREE, a_root

TENSOR = {"$": "tensor", "name": "w"}


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2, 3))


def with_tree(tree: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    return {**copy.deepcopy(BODY), "extra": {**copy.deepcopy(BODY["extra"]), "shared": tree}, **more}


def put(root: Path, content: Dict[str, Any]) -> str:
    """A good checkpoint, and a newer one as `content` says."""
    store = PosixStore(str(root))
    for name, data in a_root(json.loads(json.dumps(content)))._objects.items():
        store.create(name, data)
    return str(root)


def compare(root: str, before: str, after: str) -> CheckpointDiff:
    store = PosixStore(root)
    return diff(CheckpointAt(store, before), CheckpointAt(store, after))


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


ODD_TREES: Dict[str, Any] = {
    "a list as a key": {"model": {"$": "dict", "v": [["w", TENSOR], [[1, 2], TENSOR]]}},
    "one key twice": {"model": {"$": "dict", "v": [["w", TENSOR], ["w", {"b": TENSOR}]]}},
    "pairs that are none": {"model": {"$": "dict", "v": [["w", TENSOR], ["x"]]}},
    "a tuple that is none": {"model": {"w": TENSOR, "t": {"$": "tuple", "v": 5}}},
    "a float without digits": {"model": {"w": TENSOR}, "objects": {"f": {"$": "float", "v": []}}},
    "too deep": {"model": {"w": TENSOR, "x": deep(300)}},
}


@pytest.mark.parametrize("kind", ODD_TREES)
def test_a_tree_that_none_of_ours_wrote_is_passed_over(kind: str, tmp_path: Path) -> None:
    """It is no misfit of the program's state, which would end the run although an older checkpoint is whole."""
    root = put(tmp_path, with_tree(ODD_TREES[kind]))
    found = load_weights(root, Small(), strict=False)
    assert found.checkpoint_id == ATTEMPTS[0] and [attempt for attempt, _ in found.rejected] == [ATTEMPTS[1]]
    assert load_state(root, StateDict({"model": {"w": torch.zeros(2, 3)}})).checkpoint_id == ATTEMPTS[0]
    with pytest.raises(CheckpointError):
        compare(root, *ATTEMPTS)


def test_stages_that_are_merged_too_deep_are_damage(tmp_path: Path) -> None:
    content = with_tree({"model": {"w": TENSOR, "x": deep(900)}})
    content["extra"]["ranks"][1] = {"model": {"x": deep(900)}}
    root = put(tmp_path, content)
    with pytest.raises(CheckpointError, match="nested too deeply"):
        compare(root, *ATTEMPTS)


@pytest.mark.parametrize(
    "shape, words", [([2**62, 2**62, 0], "more numbers than there can be"), ([2**59, 1], "more numbers")]
)
def test_extents_that_cannot_be_counted_are_damage(shape: Any, words: str, tmp_path: Path) -> None:
    root = put(tmp_path, {**BODY, "table": [["w", "F32", shape, [], [], 0, 0]]})
    with pytest.raises(CheckpointError, match=words):
        compare(root, ATTEMPTS[1], ATTEMPTS[1])


def test_a_name_that_is_in_no_shard_is_damage(tmp_path: Path) -> None:
    model: Any = TREE["model"]
    root = put(tmp_path, with_tree({**TREE, "model": {**model, "w": {"$": "tensor", "name": "\x1b[31mx"}}}))
    with pytest.raises(CheckpointError, match=r"^model\.w is in no shard, under '\[31mx'$"):
        compare(root, *ATTEMPTS)


def test_a_shard_that_is_not_there_is_damage(tmp_path: Path) -> None:
    root = put(tmp_path, {**BODY, "table": [["w", "F32", [2, 3], [], [], 7, 0]]})
    with pytest.raises(CheckpointError, match="its index names shard 7 of 1"):
        compare(root, ATTEMPTS[1], ATTEMPTS[1])


def test_names_of_others_are_shown_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    odd = "\x1b]0;x\x07\nerror: gone\u202e"
    root = put(tmp_path, with_tree({**TREE, "model": {"w": TENSOR, odd: TENSOR}}))
    found = load_weights(root, Small(), strict=False)
    assert found.unexpected == (odd,)
    assert str(found).splitlines()[1:] == ["1 unexpected there: ]0;x error: gone"]
    with pytest.raises(CheckpointError) as caught:
        load_weights(root, Small(), checkpoint_id=ATTEMPTS[1])
    assert str(caught.value).isprintable()


def test_buffers_are_no_larger_than_those_of_a_writer(tmp_path: Path) -> None:
    """Of a file of holes a chunk of a gigabyte costs its owner nothing, and who reads eleven buffers of one."""
    root = put(tmp_path, {**BODY, "manifest": {"chunk": 1 << 30}})
    with pytest.raises(CheckpointError, match="chunk is '1073741824', which it cannot be"):
        manifest.decode(PosixStore(root).read(f"{ATTEMPTS[1]}/MANIFEST.json"))
    with pytest.raises(ValueError, match="more leaves than are read"):
        digest.split_size_into_data_and_leaf_count(1 << 40, 4096)
    assert digest.split_size_into_data_and_leaf_count(1 << 44)[1] * digest.LEAF_BYTES < digest.MOST_LEAVES


def test_what_is_counted_anew_is_as_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = shard_table.ShardPattern(tuple("abcdefg"), (0, 1, 2, 0, 1, 3, 0), 4)
    kept = shard_table.BoxCounts(pattern)
    monkeypatch.setattr(shard_table, "_KEPT_COUNTS", 10)
    some = shard_table.BoxCounts(pattern)
    assert [tuple(kept[number]) for number in range(8)] == [tuple(some[number]) for number in range(8)]
    assert tuple(some[7]) == (3, 2, 1, 1)


def test_layouts_that_are_cut_in_too_many_ways_are_written_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [TensorSpec(str(number), "U8", (1,), (number,), (9,)) for number in range(5)]
    placed = [Placed(spec, 100 + at, 101 + at) for at, spec in enumerate(specs)]
    assert rows.encode_index_file({0: placed})[:8] == compact_index.MAGIC
    monkeypatch.setattr(shard_table, "_MOST_COUNTS", 24)
    written = rows.encode_index_file({0: placed})
    assert written[:8] != compact_index.MAGIC and sorted(rows.decode_index_file(written)) == ["0", "1", "2", "3", "4"]


def test_an_index_that_packs_too_well_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_index, "_ALWAYS", 100)
    pattern = json.dumps([["a" * 20_000], [0]])
    own = json.dumps([0, [["F32", [1], [0], [2]]], []])
    written = compact_index.encode([(pattern, own)])
    assert len(written) > 20_000 and list(rows.decode_index_file(written)) == ["a" * 20_000]
