"""A directory that `from_pretrained` reads: files of safetensors, and what says how the model is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperpod_kit.checkpoint.convert.files import safetensors_files, weights_file
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.files.foreign_format import (
    ExportSource,
    ImportSource,
    WrittenExport,
)


class HuggingFaceFormat(weights_file.WeightsFormat):
    """Of a checkpoint that a CheckpointedTraining saved, or that was imported from such a directory."""

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        weights = safetensors_files.inspect_folder(files, path)
        step = safetensors_files.trainer_step_or_zero(path)
        parts = safetensors_files.single_rank_part(weights)
        return ImportSource(step, 1, parts, weights.bytes, weights.unchecked)

    def require_exportable(self, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
        weights_file.files_and_names_for_from_pretrained(checkpoint_id, tree)

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        return source.read(
            lambda name: weights_file.write(source.store, name, path, as_directory=True, progress=source.progress)
        )


FORMAT = HuggingFaceFormat()
