"""Checkpoints whose bytes go to S3 and leave FSx's own disks, by FSx's tasks; every file stays where it was.

A task's end is not believed: what says that a file is exported, and that its room is free, is its own state (`lfs
hsm_state`). Nothing is lost wherever this is killed: FSx releases no file that it has not exported as it is.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterator, Sequence

from hyperpod_kit.checkpoint.repository import layout, verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload import hsm
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.fsx_link import FsxTasks, LinkedRoot
from hyperpod_kit.storage.tier.rules import TierError, TierItem, TierRule
from hyperpod_kit.storage.tier.run import TierDone, TierPlan
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerPatience

EXPORT, RELEASE = "EXPORT_TO_REPOSITORY", "RELEASE_DATA_FROM_FILESYSTEM"
MOST = 100
"""Paths that a task takes."""
TRIES = 3
"""Tasks of a kind for what is left of one."""
PATIENCE = 3600.0
"""Seconds in which a task shows no change."""
SAY_EVERY = 60.0
LFS = OwnerPatience(answer=2 * hsm.SECONDS)
"""`lfs` has a deadline of its own, and what it reads is not counted."""
EXISTS, DIRTY, ARCHIVED = 0x1, 0x2, 0x8


@dataclass(frozen=True)
class FsxRelease:
    """`links`: root -> where it is; `said`: words for a person, of long work."""

    file_system: str
    links: dict[str, LinkedRoot]
    fsx: FsxTasks
    runner: Runner
    said: Callable[[str], None]
    patience: float = PATIENCE
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def apply(self, planned: TierPlan, rule: TierRule, told: Callable[[TierItem], None]) -> TierDone:
        """Release what was chosen, the oldest first; `told` of each whose room is free. What is not is named."""
        gone: list[TierItem] = []
        left: list[tuple[str, str]] = []

        def has_gone(item: TierItem) -> None:
            gone.append(item)
            told(item)

        for items in self._batches(planned.choice.go):
            try:
                left += self._batch(planned, rule, items, has_gone)
            except UsageError:
                raise
            except (HyperpodKitError, OSError) as err:
                known = {path for path, _ in left}
                rest = [_place(one) for one in items if one not in gone and _place(one) not in known]
                left += [(path, verify.describe_failure(err)) for path in rest]
        return TierDone(tuple(gone), tuple(left))

    def _batch(
        self, planned: TierPlan, rule: TierRule, items: Sequence[TierItem], has_gone: Callable[[TierItem], None]
    ) -> list[tuple[str, str]]:
        """What stays, with why. Raises TierError, AwsError, RunError, OSError."""
        roots = {one.store.url: one for one in planned.roots}

        def allowed(some: Sequence[TierItem]) -> list[TierItem]:
            """Those that may go by now: a pin or a restore may have come meanwhile."""
            free = []
            for item in some:
                one = roots[item.root]
                why = self._as_owner(item, partial(survey.may_go, one.store, one.whose, item.attempt, rule.keep))
                if why:
                    left.append((_place(item), why))
                else:
                    free.append(item)
            return free

        left: list[tuple[str, str]] = []
        exported = self._until(EXPORT, allowed(items), self._is_exported, left)
        for item in self._until(RELEASE, allowed(exported), self._is_released, left):
            try:
                # Lists of checkpoints read it each time, and what comes back of it was in S3.
                self._as_owner(item, partial(_read_manifest, roots[item.root].store, item.attempt))
                has_gone(item)
            except (HyperpodKitError, OSError) as err:
                left.append(
                    (_place(item), f"released, and its manifest does not come back: {verify.describe_failure(err)}")
                )
        return left

    def _until(
        self,
        kind: str,
        items: list[TierItem],
        is_so: Callable[[TierItem], bool],
        left: list[tuple[str, str]],
    ) -> list[TierItem]:
        """Those of which all files are as the task makes them, after a few tasks for those that are not."""
        why = ""
        waiting = [one for one in items if not is_so(one)]
        for _ in range(TRIES):
            if not waiting:
                break
            why = self._task(kind, waiting)
            waiting = [one for one in waiting if not is_so(one)]
        report = self.links[waiting[0].root].report if waiting else ""
        left += [(_place(one), f"{kind}: {why or 'not all of its files'}; see {report}") for one in waiting]
        return [one for one in items if one not in waiting]

    def _task(self, kind: str, items: Sequence[TierItem]) -> str:
        """One task, to its end; why it failed, or "". Raises TierError when it stands still, AwsError."""
        paths = [f"{self.links[one.root].path}/{one.attempt}".lstrip("/") for one in items]
        number = self.fsx.create_task(self.file_system, kind, paths, self.links[items[0].root].report)
        self.said(f"{number}: {kind} of {len(items)} checkpoints")
        begun = changed = told = self.clock()
        before, pause = None, 2.0
        while True:
            found = self.fsx.task(number)
            state, counts = found["Lifecycle"], found.get("Status") or {}
            if state in ("SUCCEEDED", "FAILED", "CANCELED"):
                words = (found.get("FailureDetails") or {}).get("Message") or state
                return "" if state == "SUCCEEDED" else f"{number} {words}"
            now = self.clock()
            seen = (state, counts.get("SucceededCount"), counts.get("FailedCount"))
            if seen != before:
                before, changed = seen, now
            if now - told >= SAY_EVERY:
                told = now
                done, total = counts.get("SucceededCount", 0), counts.get("TotalCount", 0)
                self.said(f"{number}: {done:,} of {total:,} files after {now - begun:.0f} s")
            if now - changed > self.patience:
                raise TierError(
                    f"{number} is {state} and shows no change for {self.patience:.0f} s; it goes on by itself",
                    hint=f"aws fsx describe-data-repository-tasks --task-ids {number}, and then the same again",
                )
            self.sleep(pause)
            pause = min(pause * 1.5, 15.0)

    def _is_exported(self, item: TierItem) -> bool:
        states = self._states(item).values()
        wanted = EXISTS | ARCHIVED
        return all(flags & wanted == wanted and not flags & (DIRTY | hsm.LOST) for flags in states)

    def _is_released(self, item: TierItem) -> bool:
        manifest = os.path.join(_place(item), layout.MANIFEST_FILE)
        return all(flags & hsm.RELEASED for path, flags in self._states(item).items() if path != manifest)

    @staticmethod
    def _as_owner(item: TierItem, work: Callable[[], Any]) -> Any:
        return owner.as_owner(item.root, work, LFS)

    def _states(self, item: TierItem) -> dict[str, int]:
        """HSM flags of each file in it that has bytes."""
        states: dict[str, int] = self._as_owner(item, lambda: self._flags(item))
        return states

    def _flags(self, item: TierItem) -> dict[str, int]:
        paths = []
        with os.scandir(_place(item)) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and found.st_size:
                    paths.append(entry.path)
        return hsm.states(self.runner, sorted(paths))

    def _batches(self, items: Sequence[TierItem]) -> Iterator[list[TierItem]]:
        """As many as a task takes, and of one link: a task has one report."""
        batch: list[TierItem] = []
        for item in items:
            report = self.links[item.root].report
            if batch and (len(batch) == MOST or self.links[batch[0].root].report != report):
                yield batch
                batch = []
            batch.append(item)
        if batch:
            yield batch


def _read_manifest(store: Store, attempt: str) -> None:
    verify.read_manifest(store, attempt)


def _place(item: TierItem) -> str:
    return f"{item.root}/{item.attempt}"
