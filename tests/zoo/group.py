"""A rank of a warm process group: it tries one case after the other and tells what came of each.

python -m tests.zoo.group FOLDER LAYOUT CASE...
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.errors import HyperpodKitError
from tests.support import warm_agents
from tests.zoo.control import Control, Distributed, StateDicts
from tests.zoo.packages import leave_uncompiled
from tests.zoo.training import AFTER, BEFORE, Case, Layout, Training, everything

RAISED = (Exception, CheckpointException)
"""torch.distributed.checkpoint's own is none of Exception's."""
APART = 3
"""Exit code: the ranks fared otherwise, so that messages may be under way between them."""
SAME = "same"


def outcome_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    kind = "refused" if isinstance(error, HyperpodKitError) else "error"
    if os.environ.get("HPK_ZOO_TRACEBACK"):
        traceback.print_exception(error)
    hint = getattr(error, "hint", None)
    return f"{kind}: {type(error).__name__}: {text[:300]}" + (f" | hint: {hint}" if hint else "")


def train(training: Training, begin: int, count: int) -> list[float]:
    return [training.step(number) for number in range(begin, begin + count)]


def compared(training: Training, losses: list[float], want: tuple[list[float], dict[str, str]]) -> str:
    if losses != want[0]:
        at = next(number for number, pair in enumerate(zip(losses, want[0], strict=True)) if pair[0] != pair[1])
        return f"differs: losses from step {at + 1} on"
    seen = everything(training)
    names = sorted(name for name in seen.keys() | want[1].keys() if seen.get(name) != want[1].get(name))
    return f"differs: {', '.join(names[:3])}" if names else SAME


class Trial:
    """One case in one layout, on this rank. `enter` hears which part of it begins, and what came of those before."""

    def __init__(
        self, case: Case, layout: Layout, folder: Path, enter: Callable[[str, dict[str, str]], None] | None = None
    ) -> None:
        self.case, self.layout, self.folder = case, layout, folder
        self._enter = enter or (lambda part, outcome: None)

    def controls(self) -> list[Control]:
        if not self.layout.is_sharded:
            return [StateDicts()]
        return [Distributed(self.folder / "dcp"), StateDicts()]

    def run(self) -> dict[str, str]:
        try:
            training = self.case.make(0, self.layout)
            train(training, 0, BEFORE)
        except RAISED as error:
            return {"program": outcome_of(error)}
        saved, refusals = [], {}
        for control in self.controls():
            try:
                control.save(training)
                saved.append(control)
            except RAISED as error:
                refusals[control.name] = outcome_of(error)
        try:
            want = (train(training, BEFORE, AFTER), everything(training))
        except RAISED as error:
            return {"program": outcome_of(error)}
        del training
        found = {"program": SAME, **refusals}
        for control in saved:
            self._enter(control.name, found)
            found[control.name] = self._again(control, want)
        self._enter("ours", found)
        found["ours"] = self._ours(want)
        return found

    def _again(self, control: Control, want: Any) -> str:
        try:
            training = self.case.make(1, self.layout)
            control.load(training)
            return compared(training, train(training, BEFORE, AFTER), want)
        except RAISED as error:
            return outcome_of(error)

    def _ours(self, want: Any) -> str:
        root = self.folder / "root"
        try:
            training = self.case.make(0, self.layout)
            with Manager(root) as manager:
                state = State(training.model, training.optimizer, **training.objects)
                manager.restore(state)
                train(training, 0, BEFORE)
                handle = manager.save(BEFORE - 1, state, on_busy="wait")
                if not handle.wait("durable", 30):
                    return f"refused: {handle.reason}"
                undisturbed = compared(training, train(training, BEFORE, AFTER), want)
            if undisturbed != SAME:
                return f"disturbed: {undisturbed}"
            training = self.case.make(1, self.layout)
            with Manager(root) as manager:
                manager.restore(State(training.model, training.optimizer, **training.objects))
                return compared(training, train(training, BEFORE, AFTER), want)
        except RAISED as error:
            return outcome_of(error)


def processor_seconds() -> float:
    """What this rank has spent, and the processes that it has waited for; not its checkpoint agents."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


class RanksAgreement(NamedTuple):
    """What the ranks have to say of a case, each for itself, taken together."""

    worst: dict[str, str]
    alike: bool
    """Then no message is under way."""
    processor: float
    """Seconds that all of them have spent."""


def agreed(number: int, outcome: dict[str, str], spent: float, world: int) -> RanksAgreement:
    if world == 1:
        return RanksAgreement(outcome, True, spent)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"zoo/{number}/{dist.get_rank()}", json.dumps([outcome, spent]))
    every = [json.loads(store.get(f"zoo/{number}/{rank}")) for rank in range(world)]
    outcomes: list[dict[str, str]] = [each[0] for each in every]
    names = dict.fromkeys(name for each in outcomes for name in each)
    worst = {name: next((each[name] for each in outcomes if each.get(name, SAME) != SAME), SAME) for name in names}
    alike = len({_course(each) for each in outcomes}) == 1
    return RanksAgreement(worst, alike, sum(each[1] for each in every))


def _course(outcome: dict[str, str]) -> str:
    """Where a rank came to, and what was raised there."""
    kinds = {
        name: ":".join(text.split(":")[:2]) if text.startswith(("error", "refused")) else SAME
        for name, text in outcome.items()
    }
    return "lost" if "imed out" in str(outcome) or "onnection" in str(outcome) else json.dumps(kinds)


@contextlib.contextmanager
def process_group(layout: Layout, world: int) -> Iterator[None]:
    if world == 1:
        yield
        return
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
    shape, names = ((world,), ("dp",)) if layout.name == "fsdp2" else ((2, world // 2), ("dp", "tp"))
    layout.mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tell(rows: Path, row: dict[str, Any]) -> None:
    with rows.open("a") as file:
        print(json.dumps(row), file=file)


def _tell_part(rows: Path, part: str, outcome: dict[str, str]) -> None:
    _tell(rows, {"part": part, "outcome": outcome})


def main(folder: str, name: str, *numbers: str) -> int:
    from tests.zoo.cases import every_case

    warnings.simplefilter("ignore")
    leave_uncompiled()
    warm_agents.fork_agents()
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cases, layout = every_case(), Layout(name)
    rows = Path(folder, f"rows-{name.replace(' ', '')}")
    with process_group(layout, world):
        for number in map(int, numbers):
            begun, spent = time.monotonic(), processor_seconds()
            place = Path(folder, f"case-{name.replace(' ', '')}-{number}")
            if rank == 0:
                place.mkdir()
                _tell(rows, {"begin": number})
            enter = partial(_tell_part, rows) if rank == 0 else None
            outcome = Trial(cases[number], layout, place, enter).run()
            gc.collect()
            if any(text != SAME for text in outcome.values()):
                _tell(rows, {"unlike": outcome})
            told = agreed(number, outcome, processor_seconds() - spent, world)
            if rank == 0:
                seconds = {"seconds": time.monotonic() - begun, "processor": told.processor}
                rounded = {name: round(value, 2) for name, value in seconds.items()}
                row = {"number": number, **rounded, "outcome": told.worst}
                _tell(rows, row)
                shutil.rmtree(place, ignore_errors=True)
            if not told.alike or "lost" in _course(told.worst):
                os._exit(APART)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
