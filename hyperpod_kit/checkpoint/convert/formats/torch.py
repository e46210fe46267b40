"""A file of `torch.save`: a state dict, or a dict of them."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.checkpoint.convert.files import torch_files
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.files.foreign_format import ImportSource
from hyperpod_kit.checkpoint.convert.files.nested_state import ExportedState, NestedStateFormat, torch_save_file
from hyperpod_kit.checkpoint.restore.gathered_tensors import TensorAllocator


class TorchFormat(NestedStateFormat):
    """See the module."""

    can_import = True

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        file = torch_files.load_file(path)
        return ImportSource(None, 1, torch_files.single_rank_part(file), file.bytes, file.unchecked)

    def write_state(self, state: ExportedState, path: Path, allocate: TensorAllocator) -> None:
        torch_save_file(state.nested, path)


FORMAT = TorchFormat()
