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

from hyperpod_kit.checkpoint.repository import policy
from hyperpod_kit.checkpoint.saves.handle import SaveState
from hyperpod_kit.errors import CheckpointError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_lab.torture import life
from hyperpod_lab.torture.damage import damage_case, damage_kinds, damage_special
from hyperpod_lab.torture.damage.damage_case import CaseResult, RootInspector
from hyperpod_lab.torture.damage.damage_kinds import NEWEST, OLDER, DamageKind, Objects
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


def inspect_damaged_roots(
    here: Ground, seed: int, part: PartOutcome, budget: Budget, *, most: int, mounted: str | None = None
) -> None:
    """Check at most `most` kinds of damage, drawn by lot, in the scratch directory, or below `mounted` when that
    is given."""
    begin = time.monotonic()
    dice = random.Random(f"damage/{seed}")
    by_descriptor.set_mode(here.disk, 0o711)
    by_descriptor.set_mode(here.disk.parent, 0o711)  # whoever is not root must get as far as the root
    templates = [_create_template(here, seed, world) for world in (2, 1)]
    scene: _Scene = _Disk(here.disk / "case")
    if mounted:
        scene = _Mount(Path(mounted))
    plan: list[tuple[_Template, DamageKind]] = []
    for template in templates:
        plan += [(template, kind) for kind in damage_kinds.object_damage_kinds(template.objects, dice)]
    if not mounted:
        for template in templates:
            plan += [(template, kind) for kind in damage_special.file_system_damage_kinds(template.objects)]
    if most < len(plan):
        plan = dice.sample(plan, most)
    part.requested = len(plan)
    with contextlib.closing(RootInspector(seed)) as root, contextlib.closing(
        RootInspector(seed, pristine=str(templates[0].path))
    ) as nobody:
        for template, kind in plan:
            if budget.over:
                break
            inspector = root
            if kind.unprivileged:
                inspector = nobody
            _run_case(inspector, scene, template, kind, seed, part)
    part.seconds = time.monotonic() - begin


def _run_case(
    inspector: RootInspector, scene: _Scene, template: _Template, kind: DamageKind, seed: int, part: PartOutcome
) -> None:
    case_result = inspector.inspect(str(scene.write_damaged_root(template, kind)))
    part.done += 1
    outcome = _restore_outcome_text(case_result)
    part.counts[f"{scene.name}: {outcome}"] += 1
    part.counts["MB at most"] = max(part.counts["MB at most"], case_result.memory >> 20)
    for wrong in _find_violations(kind, case_result):
        part.record_violation(
            f"seed {seed}, {scene.name}, {template.world} ranks: {kind.name}: {wrong} "
            f"({outcome}, verify {case_result.verify})"
        )


def _restore_outcome_text(case_result: CaseResult) -> str:
    if case_result.restored is None and case_result.declared:
        return f"refused, {case_result.error.partition(':')[0]}"
    if case_result.restored is None:
        return f"FAILED, {case_result.error}"
    if case_result.restored == (1, STEPS - 1):
        return NEWEST
    return OLDER


def _find_violations(kind: DamageKind, case_result: CaseResult) -> Iterator[str]:
    outcome = _restore_outcome_text(case_result)
    if not case_result.declared:
        yield case_result.error
        return
    if case_result.wrong or (
        case_result.restored is not None and case_result.restored not in [(1, step) for step in range(STEPS)]
    ):
        yield f"{case_result.restored} is not what was saved: {', '.join(case_result.wrong)}"
    if kind.expected in (NEWEST, OLDER) and outcome != kind.expected:
        yield f"expected {kind.expected}; {case_result.error}"
    if case_result.verify not in (0, 1, 3):
        yield "verify ended in an error of its own"
    if case_result.verify == 0 and (case_result.error or case_result.rejected):
        yield f"verify finds nothing wrong, and yet: {case_result.error or case_result.rejected}"
    if case_result.memory > damage_case.MOST:
        yield f"{case_result.memory >> 20} MB of memory"


class _Disk:
    """A directory that is made anew for each kind."""

    name = "disk"

    def __init__(self, case: Path) -> None:
        self._case = case

    def write_damaged_root(self, template: _Template, kind: DamageKind) -> Path:
        """Write the root anew, damaged, and return its path."""
        if self._case.exists():
            by_descriptor.remove_tree(self._case)
        root = self._case / "root"
        by_descriptor.make_directories(root)
        objects = template.objects
        if kind.change:
            objects = kind.change(objects)
        for name, content in objects.items():
            _create_file_with_parents(root / name, content)
        if kind.special is not None:
            kind.special(root)
        return root


class _Mount:
    """A directory below which files can be made and removed, and nothing else: only what differs is."""

    name = "mount"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects_by_root: dict[Path, Objects] = {}

    def write_damaged_root(self, template: _Template, kind: DamageKind) -> Path:
        """Make the root damaged by changing only the files that differ, and return its path."""
        assert kind.change is not None
        root = self._directory / f"damaged-{template.world}"
        before, desired = self._objects_by_root.get(root, {}), kind.change(template.objects)
        present = {str(path.relative_to(root)) for path in _list_files_recursively(root)}
        # What the last look has written or mended is not what was put there.
        touched = {name for name in before if before[name] != template.objects.get(name)}
        kept = {
            name for name in present if name in desired and name not in touched and before.get(name) == desired[name]
        }
        for name in sorted(present - kept):
            by_descriptor.unlink(root / name)
        for name in sorted(set(desired) - kept):
            _create_file_with_parents(root / name, desired[name])
        self._objects_by_root[root] = desired
        return root


_Scene = _Disk | _Mount
"""Where damage is done."""


def _list_files_recursively(root: Path) -> list[Path]:
    paths: list[Path] = []
    for folder, _, names in os.walk(root):
        paths += [Path(folder) / name for name in names]
    return paths


def _create_file_with_parents(path: Path, data: bytes) -> None:
    by_descriptor.make_parents(path)
    with by_descriptor.open_stream_for_writing(path, "xb") as file:
        file.write(data)


def _create_template(here: Ground, seed: int, world: int) -> _Template:
    """Let `world` ranks save STEPS checkpoints and return the undamaged root. Raises CheckpointError when it is
    not valid."""
    made = here.make_subground(f"template-{world}")
    processes = [
        life.start_life(
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
    objects = {str(path.relative_to(root)): path.read_bytes() for path in _list_files_recursively(root)}
    with contextlib.closing(RootInspector(seed)) as inspector:
        case_result = inspector.inspect(made.root)
    if (case_result.verify, case_result.restored, case_result.wrong, case_result.rejected) != (
        0,
        (1, STEPS - 1),
        [],
        [],
    ):
        raise CheckpointError(
            f"an undamaged root of {world} ranks gave {case_result}: "
            f"{[life.read_events(str(made.disk / f'life-{rank}')) for rank in range(world)]}"
        )
    by_descriptor.set_mode(made.disk, 0o711)
    return _Template(world, root, objects)
