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

from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload import hsm
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.fsx_link import FsxTasks, LinkedRoot
from hyperpod_kit.storage.tier.rules import TierError, TierItem, TierRule
from hyperpod_kit.storage.tier.run import TierPlan, TierResult
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.owner import OwnerLimits
from hyperpod_kit.untrusted.text import counted

EXPORT, RELEASE = "EXPORT_TO_REPOSITORY", "RELEASE_DATA_FROM_FILESYSTEM"
MAX_PATHS = 100
"""Paths that a task takes."""
MAX_ATTEMPTS = 3
"""Tasks of a kind for what is left of one."""
RETRY_SECONDS = 3600.0
"""Seconds in which a task shows no change."""
LOG_SECONDS = 60.0
LFS = OwnerLimits(silence=2 * hsm.TIMEOUT)
"""`lfs` has a deadline of its own, and what it reads is not counted."""
EXISTS, DIRTY, ARCHIVED = 0x1, 0x2, 0x8


@dataclass(frozen=True)
class FsxRelease:
    """Releases checkpoints by FSx's tasks.

    `links`: root -> where it is; `progress`: words for a person, of long work.
    """

    file_system: str
    links: dict[str, LinkedRoot]
    fsx: FsxTasks
    runner: Runner
    progress: Callable[[str], None]
    patience: float = RETRY_SECONDS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def release_checkpoints(
        self, planned: TierPlan, rule: TierRule, on_released: Callable[[TierItem], None]
    ) -> TierResult:
        """Release what was chosen, the oldest first; `on_released` of each whose room is free. What is not is named."""
        released: list[TierItem] = []
        retained: list[tuple[str, str]] = []

        def mark_released(item: TierItem) -> None:
            released.append(item)
            on_released(item)

        for items in self._batches(planned.choice.go):
            try:
                retained += self._release_batch_and_list_retained(planned, rule, items, mark_released)
            except UsageError:
                raise
            except (HyperpodKitError, OSError) as err:
                retained_paths = {path for path, _ in retained}
                rest = [
                    _checkpoint_path(waiting)
                    for waiting in items
                    if waiting not in released and _checkpoint_path(waiting) not in retained_paths
                ]
                retained += [(path, verify.describe_failure(err)) for path in rest]
        return TierResult(tuple(released), tuple(retained))

    def _release_batch_and_list_retained(
        self, planned: TierPlan, rule: TierRule, items: Sequence[TierItem], mark_released: Callable[[TierItem], None]
    ) -> list[tuple[str, str]]:
        """Release a batch; returns what stays, with why. Raises TierError, AwsError, RunError, OSError."""
        roots = {root.store.url: root for root in planned.roots}

        def still_deletable(candidates: Sequence[TierItem]) -> list[TierItem]:
            """Filter those that may still go: a pin or a restore may have come meanwhile."""
            deletable = []
            for item in candidates:
                root = roots[item.root]
                reason = self._run_as_owner(
                    item, partial(survey.reason_to_retain, root.store, root.run, item.attempt, rule.keep)
                )
                if reason:
                    retained.append((_checkpoint_path(item), reason))
                else:
                    deletable.append(item)
            return deletable

        retained: list[tuple[str, str]] = []
        exported = self._run_tasks_and_list_finished(EXPORT, still_deletable(items), self._is_exported, retained)
        for item in self._run_tasks_and_list_finished(RELEASE, still_deletable(exported), self._is_released, retained):
            try:
                # Lists of checkpoints read it each time, and what comes back of it was in S3.
                self._run_as_owner(item, partial(_read_manifest_to_restore_it, roots[item.root].store, item.attempt))
                mark_released(item)
            except (HyperpodKitError, OSError) as err:
                retained.append(
                    (
                        _checkpoint_path(item),
                        f"released, but its manifest cannot be read back: {verify.describe_failure(err)}",
                    )
                )
        return retained

    def _run_tasks_and_list_finished(
        self,
        kind: str,
        items: list[TierItem],
        is_finished: Callable[[TierItem], bool],
        retained: list[tuple[str, str]],
    ) -> list[TierItem]:
        """Run tasks; returns the checkpoints all of whose files are as the task makes them, after a few tasks for
        those that are not."""
        failure = ""
        waiting = [item for item in items if not is_finished(item)]
        for _ in range(MAX_ATTEMPTS):
            if not waiting:
                break
            failure = self._run_task_and_return_failure(kind, waiting)
            waiting = [item for item in waiting if not is_finished(item)]
        if not waiting:
            return items
        report = self.links[waiting[0].root].report
        reason = f"{kind}: {failure or 'not all of its files'}; see {report}"
        retained += [(_checkpoint_path(item), reason) for item in waiting]
        return [item for item in items if item not in waiting]

    def _run_task_and_return_failure(self, kind: str, items: Sequence[TierItem]) -> str:
        """Run one task to its end; returns why it failed, or "". Raises TierError when it stands still, AwsError."""
        paths = [f"{self.links[item.root].path}/{item.attempt}".lstrip("/") for item in items]
        number = self.fsx.create_data_repository_task(self.file_system, kind, paths, self.links[items[0].root].report)
        self.progress(f"{number}: {kind} of {counted(len(items), 'checkpoint')}")
        started_at = changed_at = reported_at = self.clock()
        previous_progress, pause = None, 2.0
        while True:
            task = self.fsx.describe_data_repository_task(number)
            state, counts = task["Lifecycle"], task.get("Status") or {}
            if state == "SUCCEEDED":
                return ""
            if state in ("FAILED", "CANCELED"):
                message = (task.get("FailureDetails") or {}).get("Message") or state
                return f"{number} {message}"
            now = self.clock()
            progress = (state, counts.get("SucceededCount"), counts.get("FailedCount"))
            if progress != previous_progress:
                previous_progress, changed_at = progress, now
            if now - reported_at >= LOG_SECONDS:
                reported_at = now
                done, total = counts.get("SucceededCount", 0), counts.get("TotalCount", 0)
                self.progress(f"{number}: {done:,} of {total:,} files after {now - started_at:.0f} s")
            if now - changed_at > self.patience:
                raise TierError(
                    f"{number} is {state} and has shown no progress for {self.patience:.0f} s; it continues in FSx",
                    hint=f"aws fsx describe-data-repository-tasks --task-ids {number}, then repeat the command",
                )
            self.sleep(pause)
            pause = min(pause * 1.5, 15.0)

    def _is_exported(self, item: TierItem) -> bool:
        states = self._read_hsm_flags_of_files(item).values()
        required = EXISTS | ARCHIVED
        return all(flags & required == required and not flags & (DIRTY | hsm.LOST) for flags in states)

    def _is_released(self, item: TierItem) -> bool:
        manifest = os.path.join(_checkpoint_path(item), layout.MANIFEST_FILE)
        return all(
            flags & hsm.RELEASED for path, flags in self._read_hsm_flags_of_files(item).items() if path != manifest
        )

    @staticmethod
    def _run_as_owner(item: TierItem, work: Callable[[], Any]) -> Any:
        return owner.run_as_owner_in_child_if_root(item.root, work, LFS)

    def _read_hsm_flags_of_files(self, item: TierItem) -> dict[str, int]:
        """Read the HSM flags of each file in it that has bytes."""
        states: dict[str, int] = self._run_as_owner(item, lambda: self._list_files_and_read_flags(item))
        return states

    def _list_files_and_read_flags(self, item: TierItem) -> dict[str, int]:
        paths = []
        with os.scandir(_checkpoint_path(item)) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_size:
                    paths.append(entry.path)
        return hsm.read_hsm_flags(self.runner, sorted(paths))

    def _batches(self, items: Sequence[TierItem]) -> Iterator[list[TierItem]]:
        """Yield batches of as many as a task takes, of one link each: a task has one report."""
        batch: list[TierItem] = []
        for item in items:
            report = self.links[item.root].report
            if batch and (len(batch) == MAX_PATHS or self.links[batch[0].root].report != report):
                yield batch
                batch = []
            batch.append(item)
        if batch:
            yield batch


def _read_manifest_to_restore_it(store: Store, checkpoint_id: str) -> None:
    verify.read_manifest(store, checkpoint_id)


def _checkpoint_path(item: TierItem) -> str:
    return f"{item.root}/{item.attempt}"
