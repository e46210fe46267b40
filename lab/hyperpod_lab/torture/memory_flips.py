"""One byte changed in shared memory, where a sealed capture waits that storage does not have yet."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

from hyperpod_kit.checkpoint.repository import selection
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.flips import flip_byte
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome

_DURABLE, _SEALED = 1, 2
_PAGE = 8192
"""The control page and the beginning of the non-tensor state; what lies behind is room that nothing uses."""


@dataclass(frozen=True)
class _MemoryTemplate:
    """A dead trainer and a dead agent: seq 1 is durable, seq 2 is sealed in memory only."""

    here: Ground
    order: LifeSpec
    kept: Path

    def copy_back_disk_and_memory(self) -> None:
        """Put disk and memory back to what they were."""
        for name, path in (("root", Path(self.here.root)), ("shm", self.here.shm)):
            by_descriptor.remove_tree(path, ignore_errors=True)
            by_descriptor.copy_tree(self.kept / name, path)


def flip_memory_bytes(here: Ground, seed: int, part: PartOutcome, budget: Budget) -> None:
    """Flip until `part.requested` are done or the budget is over; record each start that restored something
    wrong."""
    begin = time.monotonic()
    dice = random.Random(f"memory/{seed}")
    template = _create_template(here, seed)
    while part.done < part.requested and not budget.over:
        template.copy_back_disk_and_memory()
        path = dice.choice(sorted(template.here.shm.glob("hpk-*.img")) + sorted(template.here.shm.glob("hpk-*.ctl")))
        size = _PAGE
        if path.suffix == ".img":
            size = path.stat().st_size
        at = dice.randrange(size)
        flip_byte(path, at, dice.randrange(1, 256))
        restored = _restore_and_classify(replace(template.order, events=str(here.disk / f"after-{part.done}")))
        template.here.kill_agents()
        part.done += 1
        part.counts[f"{path.suffix[1:]}: {restored}"] += 1
        if restored not in ("the sealed one", "the durable one"):
            part.record_violation(f"seed {seed}, flip {part.done}: byte {at} of {path.name}: {restored}")
    part.seconds = time.monotonic() - begin


def _restore_and_classify(order: LifeSpec) -> str:
    """Start a life and return which checkpoint it restored, or what was wrong."""
    process = life.start_life(order)
    process.join(60.0)
    events = life.read_events(order.events)
    start_event = next((event for event in events if event["what"] in ("restored", "fresh", "error")), None)
    if start_event is None or start_event["what"] != "restored":
        return f"no restore: {start_event or events}"
    if start_event["wrong"]:
        return f"changed bytes of seq {start_event['seq']}: {start_event['wrong']}"
    return {_DURABLE: "the durable one", _SEALED: "the sealed one"}.get(start_event["seq"], f"seq {start_event['seq']}")


def _create_template(here: Ground, seed: int) -> _MemoryTemplate:
    """Let a trainer and its agent die with a save that is sealed in memory only; return what is left."""
    made = here.make_subground("template")
    order = LifeSpec(
        root=made.root,
        shm=str(made.shm),
        events=str(made.disk / "life"),
        seed=seed,
        saves=2,
        lingers=SaveState.DURABLE,
        failpoint="commit.before_extra@2",
        revives=False,
    )
    process = life.start_life(order)
    process.join(60.0)
    made.kill_agents()
    newest = selection.newest_valid(made.root).seq
    if newest != _DURABLE:
        raise CheckpointError(f"seq {newest} is durable, expected {_DURABLE}: {life.read_events(order.events)}")
    kept = here.disk / "kept"
    by_descriptor.copy_tree(made.root, kept / "root")
    by_descriptor.copy_tree(made.shm, kept / "shm")
    template = _MemoryTemplate(made, replace(order, saves=0, failpoint=""), kept)
    restored = _restore_and_classify(replace(template.order, events=str(here.disk / "undamaged")))
    made.kill_agents()
    if restored != "the sealed one":
        raise CheckpointError(f"undamaged memory gave {restored}")
    return template
