"""nvidia-resiliency-ext 0.4.1, async DCP writer with the forking caller.

The package calls torch.cuda.synchronize() and torch.cuda.current_device() unconditionally; both are stubbed here,
so this is NVRx run outside what it supports. With CPU tensors it makes no copy at save time: isolation comes from
fork's copy-on-write. The default PersistentAsyncCaller (spawn) would instead move the live CPU tensors into shared
memory and read them while training writes them, so it is not safe for CPU tensors and is not timed.
"""

from __future__ import annotations

import logging

import torch

from adapters.torch_native import _Dcp


class NvrxFork(_Dcp):
    name = "NVRx async fork (CUDA calls stubbed)"
    asynchronous = True
    modes = ("single", "fsdp2")

    def setup(self):
        torch.cuda.synchronize = lambda *a, **k: None
        torch.cuda.current_device = lambda: "cpu"
        logging.getLogger("nvidia_resiliency_ext").setLevel(logging.ERROR)
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue

        self.q = AsyncCallsQueue(persistent=False)

    def save(self, step):
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
        from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
        from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
            save_state_dict_async_finalize,
            save_state_dict_async_plan,
        )

        w = FileSystemWriterAsync(self.path(step), thread_count=1)
        ret = save_state_dict_async_plan(self.state.tree, w, None, planner=None)
        fn, preload, args = w.get_save_function_and_args()
        req = AsyncRequest(fn, args, [lambda: save_state_dict_async_finalize(*ret)], preload_fn=preload)
        self.q.schedule_async_request(req)

    def poll(self):
        if self.world == 1:
            self.q.maybe_finalize_async_calls(blocking=False, no_dist=True)
            return self.q.get_num_unfinalized_calls() == 0
        call = self.q.async_calls[0].async_caller
        return call.process is None or not call.process.is_alive()

    def wait(self):
        self.q.maybe_finalize_async_calls(blocking=True, no_dist=self.world == 1)
        if self.q.get_num_unfinalized_calls():
            self.q.maybe_finalize_async_calls(blocking=True, no_dist=self.world == 1)

    def teardown(self):
        self.q.close()
