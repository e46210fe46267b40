"""A rule over some runs: look, choose, move or delete one after the other."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.errors import CheckpointError, HyperpodKitError, UsageError
from hyperpod_kit.storage.tier import move as moving
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import Pool, TierChoice, TierItem, TierRule, choose
from hyperpod_kit.storage.tier.survey import TierRoot
from hyperpod_kit.untrusted import by_descriptor, files, owner, walk


@dataclass(frozen=True)
class TierPlan:
    """What would go, what stays and why, what cannot be looked at. `target`: root -> where it goes, None: nowhere."""

    roots: tuple[TierRoot, ...]
    pools: tuple[Pool, ...]
    choice: TierChoice
    failed: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Bytes, Unix seconds."""
        return {
            "pools": [asdict(one) for one in self.pools],
            "go": [asdict(one) for one in self.choice.go],
            "stay": {one.store.url: dict(one.stay) for one in self.roots},
            "short": self.choice.short,
            "failed": dict(self.failed),
        }


@dataclass(frozen=True)
class TierDone:
    """What has gone, and what has not: (attempt's path, why)."""

    gone: tuple[TierItem, ...]
    left: tuple[tuple[str, str], ...]


def plan(roots: Sequence[str], rule: TierRule, now: float) -> TierPlan:
    """Reads and changes nothing. A root that cannot be judged loses nothing. Raises UsageError."""
    found: dict[str, TierRoot] = {}
    pools: dict[str, Pool] = {}
    failed = []
    for root in roots:
        try:
            one, pool = survey.as_owner(root, rule.keep)
        except (HyperpodKitError, OSError) as err:
            # Of several roots one user's must not end the others' turn.
            if isinstance(err, UsageError) and len(roots) == 1:
                raise
            failed.append((root, verify.reason_of(err)))
            continue
        found[one.store.url] = one
        pools[pool.name] = pool
    items = [item for one in found.values() for item in one.items]
    choice = choose(items, list(pools.values()), rule, now)
    return TierPlan(tuple(found.values()), tuple(pools.values()), choice, tuple(failed))


def apply(planned: TierPlan, rule: TierRule, to: str | None, told: Callable[[TierItem], None]) -> TierDone:
    """Move to below `to`, or delete where that is None, the oldest first; `told` of each that has gone.

    One that cannot go is named, and the others go on. Raises UsageError.
    """
    roots = {one.store.url: one for one in planned.roots}
    gone: list[TierItem] = []
    left: list[tuple[str, str]] = []
    for item in planned.choice.go:
        one = roots[item.root]
        try:
            target = None if to is None else target_of(one, to)

            def go(one: TierRoot = one, item: TierItem = item, target: Store | None = target) -> None:
                if target is None:
                    moving.remove(one.store, item.attempt, one.whose, rule.keep)
                else:
                    moving.move(one.store, target, item.attempt, one.whose, rule.keep)

            owner.as_owner(one.store.url, go)
            gone.append(item)
            told(item)
        except (HyperpodKitError, OSError) as err:
            if isinstance(err, UsageError):
                raise
            left.append((f"{item.root}/{item.attempt}", verify.reason_of(err)))
    return TierDone(tuple(gone), tuple(left))


def target_of(one: TierRoot, to: str) -> Store:
    """The root below `to`, a directory or `s3://bucket/prefix`, of a run: its name and the beginning of its id, so that
    no two runs meet. Raises UsageError, CheckpointError."""
    name = f"{os.path.basename(one.store.url)}-{one.whose.run_id[:8]}"
    if to.startswith("s3:"):
        if not to.startswith("s3://") or not to[len("s3://") :].partition("/")[0]:
            raise UsageError(f"--to {to}: expected s3://BUCKET/PREFIX")
        return open_store(f"{to.rstrip('/')}/{name}")
    place = Path(os.path.realpath(to)) / name
    if os.path.commonpath((place, one.store.url)) in (str(place), one.store.url):
        raise UsageError(f"--to {to}: {place} lies in {one.store.url}, or the other way round")
    _made_for_owner(place, one.store.url)
    return open_store(str(place))


def _made_for_owner(place: Path, source: str) -> None:
    """The root in the archive, with the owner, the group and the mode of the run's: whoever could read and delete the
    checkpoints can, and nobody else. Raises CheckpointError when it is another's."""
    uid = owner.of(source)
    if uid is None:
        by_descriptor.make_directories(place)
        return
    gid, mode = owner.in_child(lambda: [os.stat(source).st_gid, stat.S_IMODE(os.stat(source).st_mode)], uid, source)
    above = walk.directory(str(place.parent), make=True)
    try:
        try:
            os.mkdir(place.name, 0o700, dir_fd=above)
            fresh = True
        except FileExistsError:
            fresh = False
        handle = os.open(place.name, files.DIRECTORY, dir_fd=above)
        try:
            if fresh:
                os.fchown(handle, uid, gid)
                os.fchmod(handle, mode & 0o777)
            elif os.fstat(handle).st_uid != uid:
                raise CheckpointError(
                    f"{place} belongs to uid {os.fstat(handle).st_uid}, and the run to uid {uid}",
                    hint=f"chown -R {uid}:{gid} {place}",
                )
        finally:
            os.close(handle)
    finally:
        os.close(above)
