"""hyperpod-kit: blocking copy into shared memory (the default), and the copy overlapped with training."""

from __future__ import annotations

import os
import shutil

from adapters.base import Adapter


class Hyperpod(Adapter):
    name = "hyperpod-kit"
    modes = ("single", "fsdp2")
    asynchronous = True
    has_hot = False  # a restore from memory is a new process's; `checkpoint bench` measures it
    overlap = False
    handle = None

    def _make_manager(self):
        from hyperpod_kit.checkpoint import Manager, State

        self.what = State(self.state.model, self.state.opt, extra=dict(self.state.tree["extra"]))
        options = {}
        if self.overlap:
            options["overlap"] = True
        return Manager(self.root, **options)

    def setup(self):
        self.manager = self._make_manager()
        self.manager.restore(self.what)

    def save(self, step):
        self.handle = self.manager.save(step, self.what)
        if self.handle.state == "skipped":
            raise RuntimeError(f"skipped: {self.handle.reason}")

    def poll(self):
        return self.handle.final

    def wait(self):
        if not self.handle.wait("durable", 300):
            raise RuntimeError(f"{self.handle.state}: {self.handle.reason}")

    def setup_load_only(self):
        os.environ["HPK_RESUME_MEMORY"] = "0"
        self.manager = self._make_manager()

    def load(self, step=None):
        restored = self.manager.restore(self.what)
        if getattr(restored, "tier", "nothing") != "storage":
            raise RuntimeError(f"expected a restore from storage, got {restored}")

    def has_latest(self):
        return True

    def durable_paths(self, step):
        return [os.path.join(self.root, self.handle.checkpoint_id)]

    def remove(self, step):
        if self.rank == 0:
            for path in self.durable_paths(step):
                shutil.rmtree(path, ignore_errors=True)

    def teardown(self):
        self.manager.close()


class HyperpodOverlap(Hyperpod):
    name = "hyperpod-kit, overlapped"
    note = "save returns at once; safe() is the fence before the optimizer's step"
    overlap = True

    def wait_until_tensors_reusable(self):
        self.manager.fence()
