"""torchtitan without a GPU: what it asks of an accelerator is answered by the CPU. For tests, and to try things. To be
imported before torchtitan; with a GPU it does nothing."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule


def _answer() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    memory = SimpleNamespace(total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "CPU",
        "get_device_properties": lambda device=None: memory,
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
    }
    for name, answer in answers.items():
        setattr(torch.cpu, name, answer)
    os.environ["LOCAL_RANK"] = "0"  # there is one CPU
    divide = FSDPModule.set_gradient_divide_factor

    def by_a_sum(self: FSDPModule, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)  # gloo has no other
        divide(self, factor)

    FSDPModule.set_gradient_divide_factor = by_a_sum


if not torch.cuda.is_available():
    _answer()
