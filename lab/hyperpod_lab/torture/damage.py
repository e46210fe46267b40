"""Every kind of damage to a root, one at a time: `verify` and a restore must end in time and in memory, never wrong.

Two roots: of one rank, and of two that is restored by one. In a scratch directory all kinds are done; below a directory
that is named (a mount), those that change objects.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hyperpod_kit.checkpoint.handle import SaveState
from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import damage_case, damage_kinds, damage_special, life
from hyperpod_lab.torture.damage_case import CaseResult, Looker
from hyperpod_lab.torture.damage_kinds import NEWEST, OLDER, DamageKind, Objects
from hyperpod_lab.torture.ground import Ground
from hyperpod_lab.torture.life import LifeSpec
from hyperpod_lab.torture.report import Budget, PartOutcome

STEPS = 3
"""Checkpoints of a root: steps 0, 1 and 2 of epoch 1."""


@dataclass(frozen=True)
class _Template:
    """An undamaged root."""

    world: int
    path: Path
    objects: Objects


def run(here: Ground, seed: int, part: PartOutcome, budget: Budget, *, most: int, mounted: str | None = None) -> None:
    """At most `most` kinds, drawn by lot, in the scratch directory, or below `mounted` when that is given."""
    begin = time.monotonic()
    dice = random.Random(f"damage/{seed}")
    by_descriptor.set_mode(here.disk, 0o711)
    by_descriptor.set_mode(here.disk.parent, 0o711)  # whoever is not root must get as far as the root
    templates = [_template(here, seed, world) for world in (2, 1)]
    scene: _Scene = _Mount(Path(mounted)) if mounted else _Disk(here.disk / "case")
    plan = [(made, kind) for made in templates for kind in damage_kinds.kinds(made.objects, dice)]
    if not mounted:
        plan += [(made, kind) for made in templates for kind in damage_special.kinds(made.objects)]
    plan = plan if most >= len(plan) else dice.sample(plan, most)
    part.asked = len(plan)
    with contextlib.closing(Looker(seed)) as root, contextlib.closing(
        Looker(seed, pristine=str(templates[0].path))
    ) as nobody:
        for made, kind in plan:
            if budget.over:
                break
            _one(nobody if kind.unprivileged else root, scene, made, kind, seed, part)
    part.seconds = time.monotonic() - begin


def _one(looker: Looker, scene: _Scene, made: _Template, kind: DamageKind, seed: int, part: PartOutcome) -> None:
    seen = looker.look(str(scene.damaged(made, kind)))
    part.done += 1
    outcome = _outcome(seen)
    part.counts[f"{scene.name}: {outcome}"] += 1
    part.counts["MB at most"] = max(part.counts["MB at most"], seen.memory >> 20)
    for wrong in _judge(kind, seen):
        part.violate(
            f"seed {seed}, {scene.name}, {made.world} ranks: {kind.name}: {wrong} ({outcome}, verify {seen.verify})"
        )


def _outcome(seen: CaseResult) -> str:
    if seen.restored is None:
        return f"refused, {seen.error.partition(':')[0]}" if seen.declared else f"FAILED, {seen.error}"
    return NEWEST if seen.restored == (1, STEPS - 1) else OLDER


def _judge(kind: DamageKind, seen: CaseResult) -> Iterator[str]:
    outcome = _outcome(seen)
    if not seen.declared:
        yield seen.error
        return
    if seen.wrong or (seen.restored is not None and seen.restored not in [(1, step) for step in range(STEPS)]):
        yield f"{seen.restored} is not what was saved: {', '.join(seen.wrong)}"
    if kind.expected in (NEWEST, OLDER) and outcome != kind.expected:
        yield f"expected {kind.expected}; {seen.error}"
    if seen.verify not in (0, 1, 3):
        yield "verify ended in an error of its own"
    if seen.verify == 0 and (seen.error or seen.rejected):
        yield f"verify finds nothing wrong, and yet: {seen.error or seen.rejected}"
    if seen.memory > damage_case.MOST:
        yield f"{seen.memory >> 20} MB of memory"


class _Disk:
    """A directory that is made anew for each kind."""

    name = "disk"

    def __init__(self, case: Path) -> None:
        self._case = case

    def damaged(self, made: _Template, kind: DamageKind) -> Path:
        """The root, damaged."""
        if self._case.exists():
            by_descriptor.remove_tree(self._case)
        root = self._case / "root"
        by_descriptor.make_directories(root)
        for name, data in (kind.change(made.objects) if kind.change else made.objects).items():
            _write(root / name, data)
        if kind.special is not None:
            kind.special(root)
        return root


class _Mount:
    """A directory below which files can be made and removed, and nothing else: only what differs is."""

    name = "mount"

    def __init__(self, place: Path) -> None:
        self._place = place
        self._there: dict[Path, Objects] = {}

    def damaged(self, made: _Template, kind: DamageKind) -> Path:
        """The root, damaged."""
        assert kind.change is not None
        root = self._place / f"damaged-{made.world}"
        before, wanted = self._there.get(root, {}), kind.change(made.objects)
        found = {str(path.relative_to(root)) for path in _files(root)}
        # What the last look has written or mended is not what was put there.
        touched = {name for name in before if before[name] != made.objects.get(name)}
        kept = {name for name in found if name in wanted and name not in touched and before.get(name) == wanted[name]}
        for name in sorted(found - kept):
            by_descriptor.unlink(root / name)
        for name in sorted(set(wanted) - kept):
            _write(root / name, wanted[name])
        self._there[root] = wanted
        return root


_Scene = _Disk | _Mount
"""Where damage is done."""


def _files(root: Path) -> list[Path]:
    return [Path(folder) / name for folder, _, names in os.walk(root) for name in names]


def _write(path: Path, data: bytes) -> None:
    by_descriptor.make_parents(path)
    with by_descriptor.stream(path, "xb") as file:
        file.write(data)


def _template(here: Ground, seed: int, world: int) -> _Template:
    """A root with STEPS checkpoints of `world` ranks."""
    made = here.fresh(f"template-{world}")
    processes = [
        life.start(
            LifeSpec(
                root=made.root,
                shm=str(made.shm),
                events=str(made.disk / f"life-{rank}"),
                seed=seed,
                rank=rank,
                world=world,
                store=str(made.disk / "store"),
                saves=STEPS,
                lingers=SaveState.DURABLE,
                width=8,
                options=(("keep", policy.Latest(20)),),
            )
        )
        for rank in range(world)
    ]
    for process in processes:
        process.join(120.0)
    root = Path(made.root)
    with contextlib.suppress(FileNotFoundError):
        by_descriptor.remove_tree(root / "leases")
    objects = {str(path.relative_to(root)): path.read_bytes() for path in _files(root)}
    with contextlib.closing(Looker(seed)) as looker:
        seen = looker.look(made.root)
    if (seen.verify, seen.restored, seen.wrong, seen.rejected) != (0, (1, STEPS - 1), [], []):
        raise CheckpointError(
            f"an undamaged root of {world} ranks gave {seen}: "
            f"{[life.events(str(made.disk / f'life-{rank}')) for rank in range(world)]}"
        )
    by_descriptor.set_mode(made.disk, 0o711)
    return _Template(world, root, objects)
