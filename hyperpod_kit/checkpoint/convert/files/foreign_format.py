"""What a format of another program is: one object a format, each in a file of its own in `convert/formats`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hyperpod_kit.checkpoint.agent.reports import extra_state
from hyperpod_kit.checkpoint.codec import codec
from hyperpod_kit.checkpoint.convert.files.byte_progress import Progress, no_progress
from hyperpod_kit.checkpoint.convert.files.byte_sources import ImportedFiles
from hyperpod_kit.checkpoint.convert.files.new_root import RankPart
from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.repository.store.base import Store

Taken = TypeVar("Taken")
Rejections = tuple[tuple[str, str], ...]


class ImportSource(NamedTuple):
    """A source that was looked at. `step`: None where it does not say. `files_directory`: where the files are, if
    elsewhere."""

    step: int | None
    ranks: int
    parts: Iterator[RankPart]
    bytes: int
    unchecked: int
    files_directory: Path | None = None


class WrittenExport(NamedTuple):
    """What an export has written, or would write.

    Attributes:
        checkpoint_id: Of which checkpoint.
        step: Its step.
        tensors: How many tensors were written.
        bytes: Of these tensors; of a format that holds the whole state, of all that was read and proved.
        per_rank: How many of the model's tensors are each rank's own, so that rank 0's stand for all.
    """

    checkpoint_id: str
    step: int
    tensors: int
    bytes: int
    per_rank: int = 0


class ExportSource:
    """The checkpoint that was asked for, or the newest that can be read.

    Attributes:
        store: The root.
        progress: Is told how much was read and proved.
        rejected: Newer checkpoints that were passed over, and why; known once one was read.
    """

    def __init__(self, store: Store, checkpoint_id: str | None, progress: Progress = no_progress) -> None:
        self.store = store
        self.progress = progress
        self.rejected: Rejections = ()
        self._checkpoint_id = checkpoint_id

    def read(self, read: Callable[[str], Taken]) -> Taken:
        """Return what `read` makes of that checkpoint, or of the newest that it does not reject."""
        if self._checkpoint_id is not None:
            return read(self._checkpoint_id)
        loaded, selected = selection.load_newest_accepted(self.store, read)
        self.rejected = selected.rejected
        return loaded


class ForeignFormat:
    """A format of another program. A subclass overrides `inspect`, or `write` and what an export asks before it.

    Attributes:
        can_import: Whether `inspect` is there.
        can_export: Whether `write` is there.
        has_tags: Whether a directory has several checkpoints, of which a tag names one.
    """

    can_import = False
    can_export = False
    has_tags = False

    def inspect(self, files: ImportedFiles, path: Path, tag: str | None) -> ImportSource:
        """Look at all files of a source; nothing is written. Raise UsageError, CheckpointError, OSError."""
        raise NotImplementedError

    def read_tree(self, store: Store, checkpoint_id: str, extra: bytes) -> Mapping[str, Any]:
        """Return the tree that an export begins with: what the ranks hold together."""
        return extra_state.merge_stage_trees(extra)

    def require_exportable(self, checkpoint_id: str, tree: Mapping[str, Any]) -> None:
        """Raise UsageError for a checkpoint that lacks what the format needs."""

    def exported_names(self, tree: Mapping[str, Any], stored_names: set[str]) -> set[str]:
        """Return which of the stored tensors an export would have."""
        return set(codec.tensor_names(tree)) or stored_names

    def write(self, source: ExportSource, path: Path) -> WrittenExport:
        """Write a checkpoint to `path`, which becomes the destination when all is written.

        Raise UsageError, HyperpodKitError for what cannot be written, and for what cannot be read StorageUnreadable,
        CheckpointError, DigestUnavailable, OSError.
        """
        raise NotImplementedError
