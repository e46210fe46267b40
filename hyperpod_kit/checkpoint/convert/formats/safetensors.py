"""A file of safetensors: a model's tensors, a tied one under its first name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.convert.files import safetensors_files, weights_file
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.files.foreign_format import (
    ExportSource,
    ForeignFormat,
    ImportSource,
    WrittenExport,
)


class SafetensorsFormat(ForeignFormat):
    """See the module."""

    can_import = True
    can_export = True

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        weights = safetensors_files.inspect_file(files, path)
        parts = safetensors_files.single_rank_part(weights)
        return ImportSource(0, 1, parts, weights.bytes, weights.unchecked)

    def exported_names(self, tree: Mapping[str, Any], stored_names: set[str]) -> set[str]:
        return weights_file.model_names_or_all(super().exported_names(tree, stored_names))

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        return source.read(lambda name: weights_file.write(source.store, name, path, progress=source.progress))


FORMAT = SafetensorsFormat()
