"""A rule over some runs: look, choose, move or delete one after the other."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import asdict, dataclass
from typing import Any, Callable, Iterator, Sequence

from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import Absent, CheckpointError, HyperpodKitError, UsageError
from hyperpod_kit.storage.tier import migrate as migration
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import Pool, TierChoice, TierItem, TierRule, choose_checkpoints_to_remove
from hyperpod_kit.storage.tier.survey import TierRoot
from hyperpod_kit.untrusted import by_descriptor, files, owner, walk
from hyperpod_kit.untrusted.identity import require_user_owned


@dataclass(frozen=True)
class TierPlan:
    """What would go, what stays and why, what cannot be looked at. `target`: root -> where it goes, None: nowhere."""

    roots: tuple[TierRoot, ...]
    pools: tuple[Pool, ...]
    choice: TierChoice
    failed: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: bytes, Unix seconds."""
        return {
            "pools": [asdict(pool) for pool in self.pools],
            "go": [asdict(item) for item in self.choice.go],
            "stay": {root.store.url: dict(root.stay) for root in self.roots},
            "short": self.choice.short,
            "failed": dict(self.failed),
        }


@dataclass(frozen=True)
class TierResult:
    """What has gone, and what has not: (attempt's path, why)."""

    removed: tuple[TierItem, ...]
    retained: tuple[tuple[str, str], ...]


def make_plan(roots: Sequence[str], rule: TierRule, now: float) -> TierPlan:
    """Make a plan; changes nothing. A root that cannot be judged loses nothing. Raises UsageError, Absent."""
    surveyed: dict[str, TierRoot] = {}
    pools: dict[str, Pool] = {}
    failed = []
    for root in roots:
        try:
            tier_root, pool = survey.survey_root_and_pool_as_owner(root, rule.keep)
        except (HyperpodKitError, OSError) as err:
            # Of several roots one user's must not end the others' turn.
            if isinstance(err, (Absent, UsageError)) and len(roots) == 1:
                raise
            failed.append((root, verify.describe_failure(err)))
            continue
        surveyed[tier_root.store.url] = tier_root
        pools[pool.name] = pool
    items = [item for tier_root in surveyed.values() for item in tier_root.items]
    choice = choose_checkpoints_to_remove(items, list(pools.values()), rule, now)
    return TierPlan(tuple(surveyed.values()), tuple(pools.values()), choice, tuple(failed))


def apply_plan(planned: TierPlan, rule: TierRule, to: str | None, on_removed: Callable[[TierItem], None]) -> TierResult:
    """Move what was chosen to below `to`, or delete it where that is None, the oldest first; `on_removed` of each that
    has gone.

    One that cannot go is named, and the others go on. Raises UsageError.
    """
    roots = {root.store.url: root for root in planned.roots}
    removed: list[TierItem] = []
    retained: list[tuple[str, str]] = []
    for item in planned.choice.go:
        root = roots[item.root]
        try:
            _remove_or_move(root, item, to, rule)
            removed.append(item)
            on_removed(item)
        except (HyperpodKitError, OSError) as err:
            if isinstance(err, UsageError):
                raise
            retained.append((f"{item.root}/{item.attempt}", verify.describe_failure(err)))
    return TierResult(tuple(removed), tuple(retained))


def _remove_or_move(root: TierRoot, item: TierItem, to: str | None, rule: TierRule) -> None:
    if to is None:
        owner.run_as_owner_in_child_if_root(
            root.store.url, lambda: migration.delete_or_raise_if_retained(root.store, item.attempt, root.run, rule.keep)
        )
        return
    with open_archive_root(root, to) as target:
        owner.run_as_owner_in_child_if_root(
            root.store.url,
            lambda: migration.migrate_checkpoint_returning_if_copied(
                root.store, target, item.attempt, root.run, rule.keep
            ),
        )


@contextlib.contextmanager
def open_archive_root(root: TierRoot, to: str) -> Iterator[Store]:
    """Open the root of a run below `to`, a directory or `s3://bucket/prefix`: its name and the beginning of its id, so
    that no two runs meet.

    A directory is held meanwhile. Raises UsageError, CheckpointError, UntrustedPlace, OSError.
    """
    name = f"{os.path.basename(root.store.url)}-{root.run.run_id[:8]}"
    if to.startswith("s3:"):
        if not to.startswith("s3://") or not to[len("s3://") :].partition("/")[0]:
            raise UsageError(f"--to {to}: expected s3://BUCKET/PREFIX")
        yield open_store(f"{to.rstrip('/')}/{name}")
        return
    _refuse_nested(os.path.join(os.path.realpath(to), name), root.store.url, to)
    above = walk.open_directory(os.path.abspath(to), make=True)
    try:
        path = os.path.join(os.readlink(f"/proc/self/fd/{above}"), name)
        _refuse_nested(path, root.store.url, to)
        handle = _make_directory_with_owner_of_source(path, above, root.store.url)
        try:
            store = open_store(path)
            if type(store) is PosixStore:
                store = PosixStore(path, top=handle)
            yield store
        finally:
            os.close(handle)
    finally:
        os.close(above)


def _refuse_nested(path: str, root: str, to: str) -> None:
    """Raise UsageError if either root lies in the other."""
    if os.path.commonpath((path, root)) in (path, root):
        raise UsageError(f"--to {to}: {path} lies in {root}, or the other way round")


def _make_directory_with_owner_of_source(path: str, above: int, source: str) -> int:
    """Make the root in the archive and return its descriptor, with the owner, the group and the mode of the run's:
    whoever could read and delete the checkpoints can, and nobody else.

    Raises CheckpointError when it is another's, UntrustedPlace.
    """
    uid = owner.uid_to_act_as_if_root(source)
    gid, mode = os.getegid(), by_descriptor.DIRECTORY_MODE
    if uid is not None:
        gid, mode = owner.run_as_user_in_child(
            lambda: [os.stat(source).st_gid, stat.S_IMODE(os.stat(source).st_mode)], uid, source
        )
    name = os.path.basename(path)
    try:
        os.mkdir(name, mode if uid is None else 0o700, dir_fd=above)
        fresh = True
    except FileExistsError:
        fresh = False
    try:
        handle = os.open(name, files.DIRECTORY, dir_fd=above)
    except OSError as err:
        err.filename = path
        raise
    try:
        if uid is None:
            require_user_owned(os.fstat(handle), path, handle)
        elif fresh:
            os.fchown(handle, uid, gid)
            os.fchmod(handle, mode & 0o777)
        elif os.fstat(handle).st_uid != uid:
            raise CheckpointError(
                f"{path} belongs to uid {os.fstat(handle).st_uid}, and the run to uid {uid}",
                hint=f"chown -R {uid}:{gid} {path}",
            )
        return handle
    except BaseException:
        os.close(handle)
        raise
