"""Each import with each export: what docs/how-to/in-and-out.md says of the pair. A tensor goes through bit for bit, or
the pair is refused with nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: E402

from hyperpod_kit.checkpoint.convert.export_checkpoint import FORMATS, export  # noqa: E402
from hyperpod_kit.checkpoint.convert.import_checkpoint import SOURCES, import_checkpoint  # noqa: E402
from hyperpod_kit.errors import UsageError  # noqa: E402
from tests.unit.checkpoint import zero_sources  # noqa: E402
from tests.unit.checkpoint.cut_boxes import Cutting  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "in-and-out.md"
TENSOR = torch.arange(24.0).view(4, 6)


def pairs() -> dict[tuple[str, str], str]:
    """(in, out) -> what the page's table says."""
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line
    ]
    head = next(row for row in rows if row[1:] == list(FORMATS))
    return {
        (row[0], to): said
        for row in rows
        for to, said in zip(head[1:], row[1:])
        if row[0] in SOURCES and row is not head
    }


def written(kind: str, folder: Path) -> Path:
    """With TENSOR in it; of Megatron in three boxes."""
    source = folder / "in-3"
    if kind == "dcp":
        dcp.save({"model": {"w": TENSOR}, "n": 1}, checkpoint_id=str(source), no_dist=True)
    elif kind == "torch":
        torch.save({"model": {"w": TENSOR}, "n": 1}, source)
    elif kind in ("safetensors", "huggingface"):
        from safetensors.torch import save_file

        if kind == "huggingface":
            source.mkdir()
            (source / "config.json").write_text("{}")
        save_file({"w": TENSOR}, str(source / "model.safetensors" if kind == "huggingface" else source))
    elif kind == "megatron":
        dcp.save({"w": TENSOR}, checkpoint_id=str(source), no_dist=True, planner=Cutting(flatten_state_dict=False))
        (source / "metadata.json").write_text('{"sharded_backend": "torch_dist", "common_backend": "torch"}')
        torch.save({"iteration": 3}, source / "common.pt")
    else:
        path = zero_sources.written(source, ranks=1)
        said = torch.load(path / zero_sources.SHARED, weights_only=True)
        torch.save({**said, "module": {"w": TENSOR}}, path / zero_sources.SHARED)
    return source


def tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def found(to: str, out: Path) -> Iterator[Any]:
    """As the format's own readers have it."""
    if to in ("safetensors", "huggingface"):
        from safetensors.torch import load_file

        yield from load_file(out / "model.safetensors" if to == "huggingface" else out).values()
    elif to in ("dcp", "megatron"):
        entries = dcp.FileSystemReader(str(out)).read_metadata().state_dict_metadata
        held = {
            name: torch.zeros(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        dcp.load(held, checkpoint_id=str(out), no_dist=True)
        yield from held.values()
    else:
        for path in [out] if out.is_file() else sorted(out.glob("global_step*/*.pt")):
            yield from tensors(torch.load(path, weights_only=True))


def test_the_page_has_every_pair() -> None:
    assert sorted(pairs()) == sorted((kind, to) for kind in SOURCES for to in FORMATS)


@pytest.mark.parametrize("kind", SOURCES)
def test_pairs_are_as_the_page_says(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    import_checkpoint(written(kind, tmp_path), kind, root, step=3)
    for to in FORMATS:
        said, out = pairs()[kind, to], tmp_path / f"out-{to}"
        if said == "–":
            for dry in (True, False):
                with pytest.raises(UsageError) as refused:
                    export(root, to, out, dry_run=dry)
                assert refused.value.hint
            assert not list(tmp_path.glob(f"*{out.name}*"))
            continue
        assert export(root, to, out, dry_run=True).tensors > 0 and not out.exists()
        export(root, to, out)
        data = {bytes(one.contiguous().reshape(-1).view(torch.uint8).numpy()) for one in found(to, out)}
        parts = [TENSOR[:1], TENSOR[1:, :3], TENSOR[1:, 3:]] if "boxes" in said else [TENSOR]
        assert {part.contiguous().numpy().tobytes() for part in parts} <= data, (kind, to)
