"""Python by tensor: processor time of a save and of a restore of many tensors of a few bytes, beside torch's.

    python lab/programs/many_tensors.py ROOT [--tensors 60000] [--repeat 10] [--json]

One rank, host memory. `training`: parameters of two numbers each, and AdamW's two moments and step for each. `extra`: a
dict of tensors of two numbers. The limit of a save is `torch.save` of the same state into memory, that of a restore
`torch.load` of it and where there is a model `load_state_dict`, taken in turn with ours. The figures are medians of
this process's own processor time; the agent's, which digests and writes, is not in them. The first save, which also
plans, stands beside them, and counts. The bar is 1.0 of `torch.save`. Exit codes: 0 the bar is kept, 1 not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time

import torch

from hyperpod_kit.checkpoint import Latest, Manager, State

BAR = 1.0
DEADLINE = 600.0


class Training:
    """A model and its optimizer."""

    def __init__(self, tensors: int) -> None:
        self._model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)) for _ in range(tensors // 4)])
        self._optimizer = torch.optim.AdamW(self._model.parameters(), 0.0)
        for parameter in self._model:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()

    def state(self) -> State:
        return State(self._model, self._optimizer)

    def torch_save(self, file: io.BytesIO) -> None:
        torch.save([self._model.state_dict(), self._optimizer.state_dict()], file)

    def torch_load(self, file: io.BytesIO) -> None:
        model_state, optimizer_state = torch.load(file)
        self._model.load_state_dict(model_state)
        self._optimizer.load_state_dict(optimizer_state)


class Extra:
    """A dict of tensors."""

    def __init__(self, tensors: int) -> None:
        self._tensors = {f"layer.{number}": torch.full((2,), float(number)) for number in range(tensors)}

    def state(self) -> State:
        return State(extra=self._tensors)

    def torch_save(self, file: io.BytesIO) -> None:
        torch.save(self._tensors, file)

    def torch_load(self, file: io.BytesIO) -> None:
        torch.load(file)


WORKLOADS: dict[str, type[Training] | type[Extra]] = {"training": Training, "extra": Extra}


def measure_saves(root: str, workload: Training | Extra, repeat: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"first save": [], "save": [], "torch.save": []}
    state = workload.state()
    with Manager(root, keep=Latest(1)) as manager:
        manager.restore(state)
        for number in range(repeat + 2):
            begin = time.process_time()
            handle = manager.save(number, state, on_busy="wait")
            save = time.process_time() - begin
            if not handle.wait("durable", DEADLINE):
                raise SystemExit(f"{handle}")
            if number == 0:
                seconds["first save"].append(save)
            elif number > 1:  # the second one has a slot that is new, too
                begin = time.process_time()
                workload.torch_save(io.BytesIO())
                seconds["torch.save"].append(time.process_time() - begin)
                seconds["save"].append(save)
    return seconds


def measure_restores(root: str, workload: Training | Extra, repeat: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"restore": [], "torch.load": []}
    file = io.BytesIO()
    workload.torch_save(file)
    for _ in range(repeat):
        state = workload.state()
        with Manager(root) as manager:
            begin = time.process_time()
            restored = manager.restore(state)
            seconds["restore"].append(time.process_time() - begin)
            if restored is None:
                raise SystemExit(f"nothing was restored from {root}")
        file.seek(0)
        begin = time.process_time()
        workload.torch_load(file)
        seconds["torch.load"].append(time.process_time() - begin)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="a directory in which the checkpoints may lie")
    parser.add_argument("--tensors", type=int, default=60_000)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), action="append", help="by default both")
    parser.add_argument("--repeat", type=int, default=10, help="samples of a save")
    parser.add_argument("--restores", type=int, default=3, help="samples of a restore; 0: none")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    is_missed = False
    for name in args.workload or WORKLOADS:
        workload = WORKLOADS[name](args.tensors)
        with tempfile.TemporaryDirectory(prefix="hyperpod-kit-tensors-", dir=args.root) as directory:
            root = os.path.join(directory, "root")
            seconds = measure_saves(root, workload, args.repeat)
            if args.restores:
                seconds.update(measure_restores(root, workload, args.restores))
        medians = {figure: statistics.median(samples) for figure, samples in seconds.items()}
        ratios = {figure: medians[figure] / medians["torch.save"] for figure in ("first save", "save")}
        is_missed = is_missed or max(ratios.values()) > BAR
        if args.json:
            print(json.dumps({"workload": name, "tensors": args.tensors, "seconds": seconds, "ratios": ratios}))
            continue
        print(f"{name}, {args.tensors} tensors")
        for figure, value in medians.items():
            print(f"  {figure:12} {value:.3f} s, {value / args.tensors * 1e6:.1f} µs a tensor")
        for figure, ratio in ratios.items():
            print(f"  {figure} / torch.save {ratio:.2f}, bar {BAR}")
    if is_missed:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
