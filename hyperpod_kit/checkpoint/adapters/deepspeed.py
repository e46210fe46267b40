"""DeepSpeed with this engine under it: `ZeroCheckpoints(engine, root)`, and `engine.save_checkpoint` saves into it.

DeepSpeed says what belongs into which of its files; here each file is tensors in shared memory and what else it says.
Files that all ranks of a data-parallel group would write alike are one, written by ranks that take turns; those of
ZeRO's partitions are each rank's own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from hyperpod_kit.checkpoint.adapters.dcp import step_or_number_in_checkpoint_id
from hyperpod_kit.checkpoint.adapters.roots import RootPath, resolve_root
from hyperpod_kit.checkpoint.convert.formats import deepspeed as zero_format
from hyperpod_kit.checkpoint.manager import Manager
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.restore.results import Fresh, Restored
from hyperpod_kit.checkpoint.saves.handle import Handle
from hyperpod_kit.checkpoint.state import randomness
from hyperpod_kit.checkpoint.state.sharded_state import torch_load_with_length, torch_save_with_length_and_padding
from hyperpod_kit.checkpoint.state.tensors import StateTensors
from hyperpod_kit.checkpoint.state_dict import StateDict
from hyperpod_kit.errors import CheckpointError

_CLASSES = zero_format.deepspeed_classes()
_TAG = "state"


class ZeroFiles(StateDict):
    """What the ranks' files hold, each rank's partitions its own: they fit the number of ranks that saved them."""

    def __init__(self, root: str) -> None:
        super().__init__({}, own=zero_format.PER_RANK_PATTERNS)
        self._root = root

    def targets(self, ranks: Ranks, tree: Mapping[str, Any]) -> StateTensors:
        """See State."""
        saved = tree.get("world", ranks.world)
        if saved != ranks.world:
            raise CheckpointError(
                f"the number of ranks was {saved} at the save and is {ranks.world} now, but DeepSpeed divides ZeRO's "
                "partitions by that number: use DeepSpeed's universal checkpoint, made from the output of "
                f"`hyperpod-kit checkpoint export {self._root} --to deepspeed`",
                hint="see `Another number of ranks` on the page DeepSpeed of the documentation",
            )
        return super().targets(ranks, tree)


class ZeroCheckpoints(CheckpointEngine):  # type: ignore[misc]  # deepspeed is not asked for its types
    """The checkpoint engine of `engine` (what `deepspeed.initialize` returned, ZeRO 1 to 3) for one run. Every rank
    makes it, calls `load` once, and ends with `close` or the end of a `with` block, as with Manager.

    `engine.save_checkpoint(save_dir, tag, client_state)` then is a copy in shared memory. The step is the last number
    in `tag`, else `global_steps`; into `save_dir` DeepSpeed writes no more than its `latest` and its script. A save
    that finds earlier ones still on their way is skipped. `root`: a directory on storage that all nodes share, or
    s3://bucket/prefix; None: that of `hyperpod-kit job run`. `options` are those of Manager: `keep` is the newest three
    unless it says otherwise. Raises CheckpointError without a root, and what Manager raises.
    """

    def __init__(self, engine: Any, root: RootPath | None = None, **options: Any) -> None:
        super().__init__()
        if not engine.zero_optimization_stage():
            raise CheckpointError(
                "DeepSpeed runs without ZeRO",
                hint="use Manager(root) with State(engine.module, engine.optimizer)",
            )
        self.name = "hyperpod-kit"
        self.manager = Manager(resolve_root(root), **options)
        self.found: Restored | Fresh | None = None
        self.newest: Handle | None = None
        self._engine = engine
        self._files: dict[str, Any] = {}
        self._loaded: dict[str, Any] = {}
        self._collecting = False
        self._state = ZeroFiles(self.manager.root)
        engine.checkpoint_engine = self
        engine.save_non_zero_checkpoint = True  # what ranks hold alike is every rank's: one of them writes it

    def load(self, path: str | None = None, map_location: Any = None) -> Any:
        """Bring DeepSpeed's engine to the newest checkpoint that all ranks can prove, and return its `client_state`;
        None, and everything as it was, where nothing was ever committed.

        With a `path` it is what DeepSpeed asks for: the state dict of one of its files. Raises what `Manager.restore`
        raises, CheckpointError for a checkpoint of another number of ranks.
        """
        if path is not None:
            return self._loaded[os.path.basename(path)]
        with tempfile.TemporaryDirectory() as folder:
            self._set_state_from_files(self._capture_files_deepspeed_would_save(folder), for_save=False)
            self.found = self.manager.restore(self._state)
            if not isinstance(self.found, Restored):
                return None
            values = self._state.extra
            with torch.serialization.safe_globals(_CLASSES):
                skeletons = {
                    name: torch_load_with_length(bytes(data.numpy())) for name, data in values["words"].items()
                }
            self._loaded = {
                name: zero_format.insert_tensors(skeletons[name], values["files"][name]) for name in skeletons
            }
            for names in self.manager.ranks.gather(sorted(skeletons)):
                for name in names:  # DeepSpeed looks whether its files are there
                    Path(folder, _TAG, name).touch()
            config = self._engine._config
            universal, config.load_universal_checkpoint = config.load_universal_checkpoint, False  # ours is none
            try:
                _, client_state = self._engine.load_checkpoint(folder, _TAG)
            finally:
                self._loaded, config.load_universal_checkpoint = {}, universal
        if values["generators"]:  # plain DeepSpeed has saved none
            randomness.restore(values["generators"])
        self._state = ZeroFiles(self.manager.root)
        return client_state

    def _capture_files_deepspeed_would_save(self, folder: str) -> dict[str, Any]:
        """Return the files that DeepSpeed would save now: the tensors that a restore fills."""
        self._collecting = True
        try:
            self._engine.save_checkpoint(folder, _TAG)
        finally:
            self._collecting = False
        files, self._files = self._files, {}
        return files

    def _set_state_from_files(self, files: Mapping[str, Any], *, for_save: bool = True) -> None:
        """Set the state from DeepSpeed's files; unless `for_save`, only the tensors that a restore fills:
        without what it makes anew, an optimizer's state before its first step, and without the files' other
        contents and the generators."""
        tensors: dict[str, Any] = {}
        encoded: dict[str, Any] = {}
        with torch.serialization.safe_globals(_CLASSES):
            for name, contents in files.items():
                file_tensors: list[torch.Tensor] = []
                encoded[name] = torch_save_with_length_and_padding(
                    name, zero_format.extract_tensors(contents, file_tensors)
                )
                is_rebuilt = not for_save and zero_format.PARTITION in name
                tensors[name] = {}
                if not is_rebuilt:
                    tensors[name] = {str(number): tensor for number, tensor in enumerate(file_tensors)}
        self._state.extra.update(files=tensors, words={}, generators={})
        if for_save:
            self._state.extra.update(words=encoded, generators=randomness.capture(), world=self.manager.ranks.world)

    # --- what DeepSpeed calls -----------------------------------------------------------------------------------

    def create(self, info: Any) -> None:
        """See CheckpointEngine."""
        self._files = {}

    def save(self, state_dict: Any, path: str) -> None:
        """See CheckpointEngine: the file's content is kept until `commit`."""
        self._files[os.path.basename(path)] = state_dict

    def commit(self, info: Any) -> bool:
        """See CheckpointEngine: every rank has given all its files. Raises what `Manager.save` raises."""
        if self._collecting:
            return True
        files, self._files = self._files, {}
        self._set_state_from_files(files)
        tag = getattr(info, "tag", info)  # before 0.18 it is all that is given
        step = None
        if not any(letter.isdigit() for letter in tag):
            step = self._engine.global_steps
        step = step_or_number_in_checkpoint_id(step, tag)
        self.newest = self.manager.save(step, self._state)
        self._state.extra.clear()  # DeepSpeed made copies of some of it
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """See CheckpointEngine."""
        return True

    def preserves_storage_sharing(self) -> bool:
        """See CheckpointEngine: nothing has to be cloned for it."""
        return False

    def close(self) -> bool:
        """See Manager.close: whether the newest save is durable."""
        return self.manager.close()

    def __enter__(self) -> ZeroCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.manager.__exit__(kind, error, trace)
