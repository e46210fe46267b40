"""torch's tests are written for GPUs and NCCL: the same without GPUs, over gloo."""

from __future__ import annotations

import re
from typing import Any

_RULES = [
    (re.compile(r"cpu:gloo,cuda:nccl"), "gloo"),
    (re.compile(r"""(["'])nccl\1"""), r"\1gloo\1"),
    (re.compile(r"/cuda:(\d|\{r\})"), "/cpu"),
    (re.compile(r"""f?(["'])cuda:(\{[^}]*\}|\d)\1"""), r"\1cpu\1"),
    (re.compile(r"""(["'])cuda\1"""), r"\1cpu\1"),
    (re.compile(r"\.cuda\((?:dist\.get_rank\(\)|self\.rank)?\)"), ".cpu()"),
    (re.compile(r"device=(?:self\.rank|dist\.get_rank\(\))"), 'device="cpu"'),
    (re.compile(r"torch\.cuda\.device_count\(\)"), "4"),
    (re.compile(r", device='cuda:\d'"), ""),  # how a tensor prints itself: a CPU is not named there
]
_DEVICES = 8
_FIRST = """\
from tests.distributed.torch_own import cpu as _cpu, storage as _storage

_cpu.prepare()
_storage.choose({mode!r})
"""


def for_cpu(source: str, mode: str) -> str:
    """The same test file for CPUs, which prepares torch and chooses the storage before it imports anything else."""
    for pattern, instead in _RULES:
        source = pattern.sub(instead, source)
    lines = source.splitlines(keepends=True)
    first = next((at + 1 for at, line in enumerate(lines) if line.startswith("from __future__")), 0)
    return "".join([*lines[:first], _FIRST.format(mode=mode), *lines[first:]])


def prepare() -> None:
    """What asks for GPUs asks for none; ranks are forked from the process that has imported torch already."""
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed._shard import sharded_tensor

    torch.accelerator.device_count = lambda: _DEVICES
    accelerator: Any = torch.accelerator
    accelerator.current_device_index = lambda: "cpu"
    tests: Any = common_distributed
    tests.skip_if_lt_x_gpu = lambda *_, **__: _same
    tests.requires_nccl = lambda: _same
    tests.requires_accelerator_dist_backend = lambda *_: _same
    tests.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(_forked())
    theirs = sharded_tensor.with_comms
    sharded_tensor.with_comms = lambda func=None, init_rpc=True, backend="gloo": theirs(
        func, init_rpc=init_rpc, backend="gloo"
    )
    _fsdp_on_cpu()


def _fsdp_on_cpu() -> None:
    """FSDP takes a CPU where it is told so."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    made = Fsdp.__init__

    def on_cpu(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{"device_id": torch.device("cpu"), **options})

    Fsdp.__init__ = on_cpu  # type: ignore[method-assign]


def _forked() -> Any:
    import torch

    return torch.multiprocessing.get_context("fork").Process


def _same(test: Any) -> Any:
    return test
