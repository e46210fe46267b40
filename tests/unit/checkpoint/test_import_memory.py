"""How much memory an import and an export take: less than the system would give them, whatever the checkpoint has.

The kernel counts the process's own memory and refuses what is above a limit (RLIMIT_DATA), so nothing escapes between
two looks. Pages of files that are mapped are not counted: the system takes them back when it needs them. torch maps
files privately, which would be counted, so the child asks torch for shared mappings.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from hyperpod_kit.checkpoint.convert.files import scratch_files  # noqa: E402
from hyperpod_kit.checkpoint.convert.formats import megatron  # noqa: E402
from hyperpod_kit.checkpoint.repository.format import shard  # noqa: E402
from tests.support.warm import Program  # noqa: E402
from tests.unit.checkpoint import zero_sources  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")

MIB = 1 << 20
ALLOWED = 160 * MIB
"""Above what a process has that has only imported torch and this package."""
CHILD = f"""
import mmap, resource, sys
import torch
from torch.distributed.checkpoint import state_dict_saver, filesystem
from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.convert.import_checkpoint import import_checkpoint
torch.set_num_threads(1)
torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
has = int(open("/proc/self/status").read().partition("VmData:")[2].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (has + {ALLOWED},) * 2)
what, kind, source, target = sys.argv[1:]
if what == "import":
    import_checkpoint(source, kind, target, step=1)
elif what == "export":
    export(source, kind, target)
else:
    torch.empty(int(what) << 20, dtype=torch.uint8)
"""


def within(what: str, kind: str = "", source: Path | str = "", target: Path | str = "") -> tuple[int, str]:
    """How it ended, and what was said."""
    child = Program(["-c", CHILD, what, kind, str(source), str(target)], dict(os.environ), both=True)
    said = child.stdout.read()
    return child.wait(540), said


def written(kind: str, folder: Path, megabytes: int) -> Path:
    """Two tensors of half that size each, and what the format needs beside them."""
    items = megabytes * MIB // 8
    halves = {name: torch.full((items,), value) for name, value in (("one", 1.5), ("two", -2.5))}
    halves["one"][::997] = torch.arange(len(halves["one"][::997]), dtype=torch.float32)
    if kind == "dcp":
        dcp.save(halves, checkpoint_id=str(folder), no_dist=True)
    elif kind == "torch":
        torch.save({"model": halves}, folder)
    elif kind == "safetensors":
        from safetensors.torch import save_file

        save_file(halves, str(folder))
    elif kind == "megatron":
        boxes = {
            name: ["F32", [2, items // 2], [[[0, 0], [1, items // 2]], [[1, 0], [1, items // 2]]]] for name in halves
        }
        tensors = {
            f"{name}@{row}.0": half.view(2, -1)[row : row + 1] for name, half in halves.items() for row in range(2)
        }
        nested = {"boxes": boxes, "tensors": tensors, "objects": {}, "common": {"step": 1}}
        with scratch_files.scratch_allocator(folder) as room:
            megatron.write(nested, folder, room)
    else:
        path = zero_sources.written(folder, ranks=1) / zero_sources.optimizer_file(0)
        said = torch.load(path, weights_only=True)
        said["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"] = halves["one"]
        said["optimizer_state_dict"]["single_partition_of_fp32_groups"] = [halves["two"]]
        torch.save(said, path)
    return folder


@pytest.mark.full
def test_the_limit_is_one() -> None:
    assert within(str(ALLOWED // MIB - 60)) == (0, "")
    code, said = within(str(ALLOWED // MIB + 1))
    assert code != 0 and "allocate" in said, said


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dcp", "safetensors"])
def test_an_import_and_an_export_need_no_room_for_the_checkpoint(tmp_path: Path, kind: str) -> None:
    there_and_back(tmp_path, kind, 3 * ALLOWED // MIB)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dcp", "deepspeed", "megatron", "safetensors", "torch"])
def test_nor_for_one_of_a_gigabyte(tmp_path: Path, kind: str) -> None:
    there_and_back(tmp_path, kind, 1024)


def there_and_back(folder: Path, kind: str, megabytes: int) -> None:
    source, root, out, again = (
        written(kind, folder / "in", megabytes),
        *(folder / name for name in ("root", "out", "r2")),
    )
    for what, one, other in (("import", source, root), ("export", root, out), ("import", out, again)):
        code, said = within(what, kind, one, other)
        assert code == 0, f"{what}: {said[-2000:]}"
    assert data_of(root) == data_of(again)


def data_of(root: Path) -> dict[str, str]:
    """Digests of the tensors of the newest checkpoint, less the words that a format says beside them."""
    found = {}
    for path in next(root.glob("seq-*")).glob("*.safetensors"):
        view = memoryview(np.memmap(path, mode="r").data).cast("B")
        for placed in shard.parse(view).tensors:
            found[placed.spec.name] = hashlib.blake2b(view[placed.begin : placed.end]).hexdigest()
    return {name: held for name, held in found.items() if "words" not in name.split(".") and "objects" not in name}
