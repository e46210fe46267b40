"""Import of what Megatron-core's dist_checkpointing wrote: the inverse of the export. The directories here are those
that the export makes; tests/unit/job/test_frameworks.py has those of Megatron-core itself."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hyperpod_kit import ending  # noqa: E402
from hyperpod_kit.checkpoint import cli  # noqa: E402
from hyperpod_kit.checkpoint.convert.export_checkpoint import export  # noqa: E402
from hyperpod_kit.checkpoint.convert.files import scratch_files  # noqa: E402
from hyperpod_kit.checkpoint.convert.formats import megatron  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint  # noqa: E402
from hyperpod_kit.checkpoint.state.sharded_state import torch_save_with_length_and_padding  # noqa: E402
from tests.support.content import contents  # noqa: E402
from tests.support.damage import flip  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def typed(words: list[str]) -> int:
    """The exit code of `hyperpod-kit checkpoint WORDS`, whose errors are said."""
    return ending.run(lambda: cli.main(words))


def nested() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(6, 4, generator=generator) for _ in range(2))
    whole = torch.randn(3, 5, generator=generator).bfloat16()
    return {
        "boxes": {
            "layer.weight": ["F32", [6, 8], [[[0, 0], [6, 4]], [[0, 4], [6, 4]]]],
            "norm": ["BF16", [3, 5], [[[0, 0], [3, 5]]]],
        },
        "tensors": {"layer.weight@0.0": left, "layer.weight@0.4": right, "norm": whole},
        "objects": {"rng/shard_0_1": torch_save_with_length_and_padding("rng", {"state": (1, 2.5)})},
        "common": {"step": 31, "note": ["a", {"b": torch.arange(3)}]},
    }


def written(folder: Path) -> Path:
    with scratch_files.scratch_allocator(folder) as room:
        megatron.write(nested(), folder, room)
    return folder


def test_what_was_imported_is_exported_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, root, out = written(tmp_path / "in"), tmp_path / "root", tmp_path / "out"
    assert typed(["import", str(folder), "--from", "megatron", "--out", str(root), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["unchecked"]) == (31, 0)
    assert export(root, "megatron", out).step == 31
    import torch.distributed.checkpoint as dcp

    for place in (folder, out):
        found = {"layer.weight": torch.zeros(6, 8), "norm": torch.zeros(3, 5, dtype=torch.bfloat16)}
        dcp.load(found, checkpoint_id=str(place), no_dist=True)
        held = nested()["tensors"]
        assert torch.equal(found["layer.weight"], torch.cat([held["layer.weight@0.0"], held["layer.weight@0.4"]], 1))
        assert torch.equal(found["norm"], held["norm"])
        common = torch.load(place / "common.pt", weights_only=True)
        assert common["step"] == 31 and torch.equal(common["note"][1]["b"], torch.arange(3))
    import_checkpoint(out, "megatron", tmp_path / "again")
    assert {name: held[2] for name, held in contents(root).items()} == {
        name: held[2] for name, held in contents(tmp_path / "again").items()
    }


def also_said(folder: Path, **more: Any) -> None:
    path = folder / ".metadata"
    said = pickle.loads(path.read_bytes())
    for name, value in more.items():
        setattr(said, name, value)
    path.write_bytes(pickle.dumps(said))


def test_the_plans_that_megatron_keeps_are_passed_over(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.planner_helpers import _create_write_items

    plan = SavePlan(_create_write_items("norm", torch.ones(3, 5)))
    # As Megatron-core 0.13 says where none is flattened
    nothing_of_each: dict[str, Any] = {"layer.weight": {}, "norm": {}}
    also_said(written(tmp_path / "in"), all_local_plans=[plan], mcore_data=nothing_of_each)
    assert import_checkpoint(tmp_path / "in", "megatron", tmp_path / "root").tensors > 3


def no_common(folder: Path) -> None:
    (folder / "common.pt").unlink()


def no_config(folder: Path) -> None:
    (folder / "metadata.json").unlink()


def other_backend(folder: Path) -> None:
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1}')


def own_classes(folder: Path) -> None:
    torch.save({"args": Path("x")}, folder / "common.pt")


def flattened(folder: Path) -> None:
    also_said(folder, mcore_data={"norm": {"nd_reformulated_orig_global_shape": (3, 5)}, "layer.weight": {}})


def no_table(folder: Path) -> None:
    also_said(folder, mcore_data=["norm"])


def damaged(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    flip(path, path.read_bytes().index(nested()["tensors"]["norm"].view(torch.uint8).numpy().tobytes()) + 3)


def damaged_common(folder: Path) -> None:
    path = folder / "common.pt"
    flip(path, path.read_bytes().index(torch.arange(3).numpy().tobytes()) + 9)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (no_common, "is incomplete: it lacks common.pt"),
        (no_config, "has no metadata.json"),
        (other_backend, "expected torch_dist"),
        (own_classes, "values of classes that cannot be imported"),
        (flattened, "holds ranges of flattened tensors (['norm'])"),
        (no_table, "mcore_data"),
        (damaged, "Bad CRC-32"),
        (damaged_common, "common.pt is damaged"),
    ],
)
def test_what_is_not_whole_is_refused(
    tmp_path: Path, spoil: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(written(tmp_path / "in"))
    assert typed(["import", str(tmp_path / "in"), "--from", "megatron", "--out", str(tmp_path / "root")]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "root").glob("seq-*"))
