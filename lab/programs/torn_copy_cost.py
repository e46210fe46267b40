#!/usr/bin/env python3
"""What it costs to see that a tensor changed while it was copied: the same run, half of the saves do not look.

    python lab/programs/torn_copy_cost.py ROOT [--saves 41]

Each shape of state has one process group's worth of everything: one rank, host memory, parameters and AdamW's moments.
"In the checks" is the processor's time inside the looks before and after a copy; the stalls are those of whole saves,
by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from hyperpod_kit.checkpoint import Latest, Manager, State
from hyperpod_kit.checkpoint.capture import staging
from hyperpod_kit.checkpoint.transfer import copied_sources


class Shape(NamedTuple):
    """So many parameters of so many items each; AdamW adds two tensors of the same size, and a step."""

    parameters: int
    items: int


SHAPES = (Shape(16, 4 * 2**20), Shape(650, 64 * 1024), Shape(2_000, 256), Shape(15_000, 2))

Sources = copied_sources.CopiedSources


class ObservationTimer:
    """The looks of a Manager's copies, timed or left out."""

    def __init__(self) -> None:
        self.enabled = True
        self.seconds = 0.0

    def patch_observations(self) -> None:
        """Put it in the place of what staging calls."""
        timer, observe, changed = self, Sources.observe, Sources.changed
        nothing = Sources([])

        def observe_or_skip(sources: Any) -> Any:
            return timer._time_or_skip(partial(observe, sources), copied_sources.SourceState([], []))

        def changed_or_skip(sources: Any, before: Any) -> Any:
            return timer._time_or_skip(partial(changed, sources, before), [])

        def make_sources_or_skip(pieces: Any) -> Any:
            return timer._time_or_skip(partial(Sources, pieces), nothing)

        replaced: Any = Sources
        stage: Any = staging
        replaced.observe = observe_or_skip
        replaced.changed = changed_or_skip
        stage.CopiedSources = make_sources_or_skip

    def _time_or_skip(self, work: Callable[[], Any], instead: Any) -> Any:
        if not self.enabled:
            return instead
        begin = time.thread_time()
        try:
            return work()
        finally:
            self.seconds += time.thread_time() - begin


def measure_shape(root: str, shape: Shape, saves: int, timer: ObservationTimer) -> dict[str, Any]:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(shape.items)) for _ in range(shape.parameters)])
    optimizer = torch.optim.AdamW(model.parameters(), 0.0)
    for parameter in model:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = State(model, optimizer)
    stalls: dict[bool, list[float]] = {True: [], False: []}
    checks: list[float] = []
    timer.enabled = True
    with Manager(root, keep=Latest(1)) as manager:
        manager.restore(state)
        for number in range(saves + 4):
            timer.enabled, timer.seconds = number % 4 in (0, 3), 0.0  # with either slot
            handle = manager.save(number, state, on_busy="wait")
            if not handle.wait("durable", 300):
                raise SystemExit(f"{handle}")
            if number < 4:  # the first ones make the slots and fault memory in
                continue
            stalls[timer.enabled].append(handle.stall_ms)
            if timer.enabled:
                checks.append(timer.seconds * 1e3)
        timer.enabled = True
    everything: list[torch.Tensor] = list(model.parameters())
    for moments in optimizer.state.values():
        everything += moments.values()
    return {
        "tensors": len(everything),
        "state_mib": round(sum(tensor.nbytes for tensor in everything) / 2**20, 1),
        "saves": len(checks),
        "in_the_checks_ms": {"median": round(statistics.median(checks), 2), "max": round(max(checks), 2)},
        "median_stall_ms": {
            "looked": round(statistics.median(stalls[True]), 1),
            "not looked": round(statistics.median(stalls[False]), 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--saves", type=int, default=41)
    args = parser.parse_args()
    timer = ObservationTimer()
    timer.patch_observations()
    for number, shape in enumerate(SHAPES):
        print(json.dumps(measure_shape(os.path.join(args.root, str(number)), shape, args.saves, timer)), flush=True)


if __name__ == "__main__":
    main()
