"""One rank of a replay: the same state saved by torch.save, by DCP or by our engine; every time is the slowest rank's.

torch.save is rank 0 alone, after all ranks have sent it their parts, into one file for the model and one for the
optimizer. DCP and ours write a part from every rank. All three end with an fsync; ours ends when it is durable.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from hyperpod_kit.checkpoint import Handle, Manager, State
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.storage.bench.replay.peers import Peers
from hyperpod_kit.storage.bench.replay.workload import Workload
from hyperpod_kit.untrusted import by_descriptor

WRITERS = ("torch-save", "dcp", "hyperpod-kit")
PATIENCE_SECONDS = 300.0
"""Seconds after which a save that is not durable is an error."""


def wait_until_durable(handle: Handle) -> None:
    """Wait until a save is durable. Raises RuntimeError when it will never be."""
    if not handle.wait(SaveState.DURABLE, PATIENCE_SECONDS):
        raise RuntimeError(f"the save of step {handle.step} is {handle.state}: {handle.reason}")


class Replaying:
    """The saves of one rank below `directory`; each is removed before the next begins."""

    def __init__(self, peers: Peers, work: Workload, directory: Path) -> None:
        self.peers, self.work, self.directory = peers, work, directory

    def time_saves(self, writer: str, repeat: int) -> dict[str, Any]:
        """Time the saves.

        `size`: bytes of all ranks; `seconds`, `stall`: of each save after the first, which prepares what stays.
        """
        if writer == "hyperpod-kit":
            times = self._time_manager_saves(repeat)
        else:
            times = self._time_torch_or_dcp_saves(writer, repeat)
        return {
            "writer": writer,
            "ranks": self.peers.world,
            "size": int(self.peers.sum_over_ranks(self.work.bytes)),
            "seconds": [seconds for _, seconds in times[1:]],
            "stall": [stall for stall, _ in times[1:]],
        }

    def _time_torch_or_dcp_saves(self, writer: str, repeat: int) -> list[tuple[float, float]]:
        save = self._save_by_torch if writer == "torch-save" else self._save_by_dcp
        times = []
        for number in range(repeat + 1):
            directory = self.directory / f"{writer}-{number}"
            if self.peers.rank == 0:
                by_descriptor.make_directory(directory)
            self.work.update_all_values()
            self.peers.barrier()
            begin = time.perf_counter()
            save(directory)
            seconds = self.peers.max_over_ranks(time.perf_counter() - begin)
            times.append((seconds, seconds))
            if self.peers.rank == 0:
                by_descriptor.remove_tree(directory)
            self.peers.barrier()
        return times

    def _save_by_torch(self, directory: Path) -> None:
        states = self._model_and_optimizer_states(full=True)
        if self.peers.rank:
            return
        for name, state in states.items():
            with by_descriptor.open_stream_for_writing(directory / f"{name}.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

    def _save_by_dcp(self, directory: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        writer = FileSystemWriter(str(directory), sync_files=True)
        save(self._model_and_optimizer_states(full=False), storage_writer=writer, no_dist=self.peers.world == 1)

    def _model_and_optimizer_states(self, *, full: bool) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        gathered = full and self.peers.world > 1
        options = StateDictOptions(full_state_dict=gathered, cpu_offload=gathered)
        model, optimizer = get_state_dict(self.work.model, self.work.optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def _time_manager_saves(self, repeat: int) -> list[tuple[float, float]]:
        manager = Manager(self.directory / "root")
        state = State(self.work.model, self.work.optimizer)
        manager.restore(state)
        times = []
        for number in range(repeat + 1):
            self.work.update_all_values()
            self.peers.barrier()
            begin = time.perf_counter()
            handle = manager.save(number, state)
            stall = time.perf_counter() - begin
            wait_until_durable(handle)
            times.append((self.peers.max_over_ranks(stall), self.peers.max_over_ranks(time.perf_counter() - begin)))
        if not manager.close():
            raise RuntimeError("the manager did not close cleanly")
        return times
