"""torch.save, safetensors and torch.distributed.checkpoint (DCP)."""

from __future__ import annotations

import json
import os

import torch
import torch.distributed.checkpoint as dcp
from state import copy_tensors_into, walk_leaves

from adapters.base import Adapter


class TorchSave(Adapter):
    name = "torch.save"
    modes = ("single", "fsdp2")

    def rank_file(self, step):
        return os.path.join(self.path(step), f"rank{self.rank}.pt")

    def save(self, step):
        os.makedirs(self.path(step), exist_ok=True)
        torch.save(self.state.local_tree(), self.rank_file(step))

    def load(self, step=None):
        copy_tensors_into(self.state.tree, torch.load(self.rank_file(step), map_location="cpu", weights_only=True))

    def load_variants(self):
        return {"mmap": self.load_with_mmap}

    def load_with_mmap(self, step):
        loaded = torch.load(self.rank_file(step), map_location="cpu", weights_only=True, mmap=True)
        copy_tensors_into(self.state.tree, loaded)


class SafeTensors(Adapter):
    name = "safetensors"
    modes = ("single", "fsdp2")

    def rank_file(self, step):
        return os.path.join(self.path(step), f"rank{self.rank}.safetensors")

    def save(self, step):
        from safetensors.torch import save_file

        os.makedirs(self.path(step), exist_ok=True)
        flat, rest = {}, {}
        for k, v in walk_leaves(self.state.local_tree()):
            if isinstance(v, torch.Tensor):
                flat[k] = v.detach()
            else:
                rest[k] = v
        save_file(flat, self.rank_file(step), metadata={"rest": json.dumps(rest, default=str)})

    def load(self, step=None):
        from safetensors.torch import load_file

        flat = load_file(self.rank_file(step))
        with torch.no_grad():
            for (k, _), t in zip(self.state.leaves, self.state.tensors):
                t.copy_(flat[k])


class _Dcp(Adapter):
    modes = ("single", "fsdp2")

    def load(self, step=None):
        # in place: DCP reads straight into the tensors of the state dict it is given
        dcp.load(
            {
                "model": self.state.tree["model"],
                "optim": self.state.tree["optim"],
                "extra": dict(self.state.tree["extra"]),
            },
            checkpoint_id=self.path(step),
        )


class DcpSync(_Dcp):
    name = "dcp.save"

    def save(self, step):
        dcp.save(self.state.tree, checkpoint_id=self.path(step))


class DcpSync2(_Dcp):
    name = "dcp.save 2 threads"
    modes = ("single",)

    def save(self, step):
        dcp.save(self.state.tree, storage_writer=dcp.FileSystemWriter(self.path(step), thread_count=2))


class _DcpAsync(_Dcp):
    asynchronous = True
    kind = "thread"
    fut = None
    staging = None

    def make_stager(self):
        return None

    def setup(self):
        self._stager = self.make_stager()

    def save(self, step):
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

        checkpointer_type = AsyncCheckpointerType.THREAD
        if self.kind == "process":
            checkpointer_type = AsyncCheckpointerType.PROCESS
        kw = {}
        if self._stager is not None:
            kw["async_stager"] = self._stager
        r = dcp.async_save(
            self.state.tree,
            checkpoint_id=self.path(step),
            async_checkpointer_type=checkpointer_type,
            **kw,
        )
        if isinstance(r, AsyncSaveResponse):
            self.staging, self.fut = r.staging_completion, r.upload_completion
        else:
            self.staging, self.fut = None, r

    def wait_until_tensors_reusable(self):
        if self.staging is not None:
            self.staging.result()

    def poll(self):
        return self.fut.done()

    def wait(self):
        self.fut.result()

    def teardown(self):
        if self._stager is not None:
            self._stager.close()


class DcpAsyncThread(_DcpAsync):
    name = "dcp.async_save thread"
    note = "default stager: fresh staging buffers every save"


class DcpAsyncThreadCached(_DcpAsync):
    name = "dcp.async_save thread, cached stager"
    note = "DefaultStager(pinned=False, shared=False, async=False, non_blocking=False) kept by the caller"

    def make_stager(self):
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        return DefaultStager(StagingOptions(False, False, False, False))


class DcpAsyncThreadBg(_DcpAsync):
    name = "dcp.async_save thread, async stager"
    note = "DefaultStager(shared=False, async=True): the copy itself runs in a thread; safe() waits for it"

    def make_stager(self):
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        return DefaultStager(StagingOptions(False, False, True, False))


class DcpAsyncProcess(_DcpAsync):
    name = "dcp.async_save process"
    kind = "process"
    note = "default stager: private buffers, moved to shared memory when sent to the process"


class DcpAsyncProcessShared(_DcpAsync):
    name = "dcp.async_save process, shared stager"
    kind = "process"
    note = "DefaultStager(shared=True) kept by the caller"

    def make_stager(self):
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        return DefaultStager(StagingOptions(False, True, False, False))
