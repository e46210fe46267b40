"""A file of safetensors: a model's tensors, a tied one under its first name."""

from __future__ import annotations

from pathlib import Path

from hyperpod_kit.checkpoint.convert.files import safetensors_files, weights_file
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.files.foreign_format import (
    ExportSource,
    ImportSource,
    WrittenExport,
)


class SafetensorsFormat(weights_file.WeightsFormat):
    """See the module."""

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        weights = safetensors_files.inspect_file(files, path)
        parts = safetensors_files.single_rank_part(weights)
        return ImportSource(0, 1, parts, weights.bytes, weights.unchecked)

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        return source.read(lambda name: weights_file.write(source.store, name, path, progress=source.progress))


FORMAT = SafetensorsFormat()
