"""DLRover Flash Checkpoint 0.6.1, run under dlrover-run (agent process persists; see run_all.py for the launch).

`--standalone` of dlrover-run 0.6.1 does not work with torch 2.13 (SubprocessHandler signature), so the harness
starts `python -m dlrover.python.master.main --platform local` itself and gives dlrover-run its address.
Completion is read from the tracker file every 5 ms; DLRover's own wait_latest_checkpoint() polls every 3 s.
"""

from __future__ import annotations

import contextlib
import os
import time

from state import copy_tensors_into

from adapters.base import Adapter

TRACKER = "dlrover_latest.txt"


class _Dl(Adapter):
    launcher = "dlrover"
    asynchronous = True
    has_hot = True
    last = None

    def read_tracked_step(self):
        with contextlib.suppress(FileNotFoundError, ValueError), open(os.path.join(self.root, TRACKER)) as f:
            return int(f.read())
        return None

    def has_latest(self):
        return True

    def poll(self):
        return self.read_tracked_step() == self.last

    def wait(self):
        t = time.time()
        while not self.poll():
            if time.time() - t > 300:
                raise TimeoutError("tracker file never reached the saved step")
            time.sleep(0.005)


class DlroverDdpDisk(_Dl):
    name = "DLRover Ddp DISK"
    modes = ("single", "fsdp2")

    def setup(self):
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

        self.ST = StorageType
        n = self.world
        self.c = DdpCheckpointer(self.root, local_shard_num=n, global_shard_num=n)

    def save(self, step):
        self.last = step
        self.c.save_checkpoint(step, self.state.local_tree(), storage_type=self.ST.DISK)
        if self.c._engine._cached_step != step:
            raise RuntimeError("DLRover silently skipped the save (previous one still persisting)")

    def load(self, step=None):
        self.latest_used = self.read_tracked_step()
        if step is None:
            sd = self.c._engine._load_from_storage("")
        else:
            sd = self.c._engine._load_from_storage(os.path.join(self.path(step), f"rank_{self.rank}.pt"))
        if not sd:
            raise RuntimeError("DLRover returned an empty state dict (no error of its own)")
        sd = sd.get("model_states", sd)
        copy_tensors_into(self.state.tree, sd)

    def load_hot(self):
        sd = self.c.load_checkpoint()
        copy_tensors_into(self.state.tree, sd)

    def setup_load_only(self):
        self.setup()


class DlroverDdpMemory(DlroverDdpDisk):
    name = "DLRover Ddp MEMORY"
    has_cold = False

    def save(self, step):
        self.last = step
        self.c.save_checkpoint(step, self.state.local_tree(), storage_type=self.ST.MEMORY)
        if self.c._engine._cached_step != step:
            raise RuntimeError("DLRover silently skipped the save")

    def poll(self):
        return True

    def wait(self):
        pass


class _Fsdp(_Dl):
    """DLRover 0.6.1's FSDP engine leaves CheckpointConfig.rank at 0 on every rank, so with 2 ranks on a node only
    one done-file ever appears, the commit never sees 2 of 2, and the saver thread sits out save_timeout (default
    600 s) after every save. save_timeout=1 bounds that to one 5 s poll; wait_until_ready() waits it out between saves.
    The tracker file is written by shard 0 before the commit, whatever the other shards did. 'Complete' is read
    here as: tracker at this step, and every shard file at its full size.
    """

    timeout = 1

    def shard_file(self, step):
        return os.path.join(self.path(step), f"__{self.rank}_0.distcp")

    def shared_memory_handler(self):
        raise NotImplementedError

    def poll(self):
        if self.read_tracked_step() != self.last:
            return False
        try:
            return os.path.getsize(self.shard_file(self.last)) >= self.shared_memory_handler().shared_memory.size
        except FileNotFoundError:
            return False

    def wait_until_ready(self):
        d = os.path.join(self.root, "._dlrover_ckpt_stage", f"{self.last}.done")
        t = time.time()
        while os.path.exists(d) and time.time() - t < 30:
            time.sleep(0.05)


class DlroverFsdpEngine(_Fsdp):
    """The FSDP (DCP-planned) engine under the public checkpointer, given FSDP2 DTensors directly.

    Its hot load takes unsharded items from rank 0 only, but the DCP planner of torch 2.13 spreads them over ranks,
    so as shipped it raises KeyError. Here the planner is told to keep them on rank 0 (dedup_save_to_lowest_rank),
    so that the hot load can be timed; DlroverFsdp1 below runs as shipped.
    """

    name = "DLRover Fsdp engine DISK (DTensor, planner patched)"
    modes = ("fsdp2",)

    def setup(self):
        from dlrover.python.common.storage import get_checkpoint_storage
        from dlrover.trainer.torch.flash_checkpoint import fsdp_engine
        from torch.distributed.checkpoint import DefaultSavePlanner
        from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

        fsdp_engine.dist_cp.save_state_dict = lambda state_dict, storage_writer: _save_state_dict(
            state_dict, storage_writer, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True)
        )
        FsdpCheckpointEngine = fsdp_engine.FsdpCheckpointEngine
        self.e = FsdpCheckpointEngine(self.root, get_checkpoint_storage(None), "", self.timeout)

    def shared_memory_handler(self):
        return self.e._shm_handler

    def model_and_optimizer_tree(self):
        return {"model": self.state.tree["model"], "optim": self.state.tree["optim"]}

    def save(self, step):
        self.last = step
        paths = {"model_states": self.path(step)}
        self.e.save_to_storage(step, self.model_and_optimizer_tree(), paths)
        if self.e._cached_step != step:
            raise RuntimeError("DLRover silently skipped the save")

    def _load_with_reader(self, reader):
        import torch.distributed.checkpoint as dcp

        sd = self.model_and_optimizer_tree()
        dcp.load(sd, storage_reader=reader)

    def load(self, step=None):
        from dlrover.trainer.torch.flash_checkpoint.fsdp_engine import FileReader

        if step is None:
            p = self.e._get_track_resume_path()
        else:
            p = self.path(step)
        self._load_with_reader(FileReader(p))

    def load_hot(self):
        r = self.e.load()
        if type(r).__name__ != "SharedMemoryReader":
            raise RuntimeError(f"not from memory: {r}")
        self._load_with_reader(r)


class DlroverFsdp1(_Fsdp):
    """The public FsdpShardCheckpointer, which only takes FSDP1 modules (its save makes the state dict itself)."""

    name = "DLRover FsdpShard DISK (FSDP1)"
    modes = ("fsdp1",)

    def shared_memory_handler(self):
        return self.c._engine._shm_handler

    def setup(self):
        from dlrover.trainer.torch.flash_checkpoint.fsdp import FsdpShardCheckpointer, StorageType

        self.ST = StorageType
        self.c = FsdpShardCheckpointer(self.root, save_timeout=self.timeout)

    def save(self, step):
        self.last = step
        self.c.save_checkpoint(
            step, self.state.model, self.state.opt, extra_sd={"step": step}, storage_type=self.ST.DISK
        )
        if self.c._engine._cached_step != step:
            raise RuntimeError("DLRover silently skipped the save")

    def load(self, step=None):
        p = ""
        if step is not None:
            p = self.path(step)
        self.c.load_checkpoint(self.state.model, self.state.opt, resume_path=p)

    def load_hot(self):
        self.c.load_checkpoint(self.state.model, self.state.opt)
