"""A rule over some runs: look, choose, move or delete one after the other."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import asdict, dataclass
from typing import Any, Callable, Iterator, Sequence

from hyperpod_kit.checkpoint.repository import verify
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import open_store
from hyperpod_kit.checkpoint.repository.store.posix import PosixStore
from hyperpod_kit.errors import Absent, CheckpointError, HyperpodKitError, UsageError
from hyperpod_kit.storage.tier import move as moving
from hyperpod_kit.storage.tier import survey
from hyperpod_kit.storage.tier.rules import Pool, TierChoice, TierItem, TierRule, choose
from hyperpod_kit.storage.tier.survey import TierRoot
from hyperpod_kit.untrusted import by_descriptor, files, owner, walk
from hyperpod_kit.untrusted.identity import require_ours


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
    """Reads and changes nothing. A root that cannot be judged loses nothing. Raises UsageError, Absent."""
    found: dict[str, TierRoot] = {}
    pools: dict[str, Pool] = {}
    failed = []
    for root in roots:
        try:
            one, pool = survey.as_owner(root, rule.keep)
        except (HyperpodKitError, OSError) as err:
            # Of several roots one user's must not end the others' turn.
            if isinstance(err, (Absent, UsageError)) and len(roots) == 1:
                raise
            failed.append((root, verify.describe_failure(err)))
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
            _go(one, item, to, rule)
            gone.append(item)
            told(item)
        except (HyperpodKitError, OSError) as err:
            if isinstance(err, UsageError):
                raise
            left.append((f"{item.root}/{item.attempt}", verify.describe_failure(err)))
    return TierDone(tuple(gone), tuple(left))


def _go(one: TierRoot, item: TierItem, to: str | None, rule: TierRule) -> None:
    if to is None:
        owner.as_owner(one.store.url, lambda: moving.remove(one.store, item.attempt, one.whose, rule.keep))
        return
    with target_of(one, to) as target:
        owner.as_owner(one.store.url, lambda: moving.move(one.store, target, item.attempt, one.whose, rule.keep))


@contextlib.contextmanager
def target_of(one: TierRoot, to: str) -> Iterator[Store]:
    """The root below `to`, a directory or `s3://bucket/prefix`, of a run: its name and the beginning of its id, so that
    no two runs meet. A directory is held meanwhile. Raises UsageError, CheckpointError, UntrustedPlace, OSError."""
    name = f"{os.path.basename(one.store.url)}-{one.whose.run_id[:8]}"
    if to.startswith("s3:"):
        if not to.startswith("s3://") or not to[len("s3://") :].partition("/")[0]:
            raise UsageError(f"--to {to}: expected s3://BUCKET/PREFIX")
        yield open_store(f"{to.rstrip('/')}/{name}")
        return
    _refuse_nested(os.path.join(os.path.realpath(to), name), one.store.url, to)
    above = walk.directory(os.path.abspath(to), make=True)
    try:
        place = os.path.join(os.readlink(f"/proc/self/fd/{above}"), name)
        _refuse_nested(place, one.store.url, to)
        handle = _made_for_owner(place, above, one.store.url)
        try:
            store = open_store(place)
            yield PosixStore(place, top=handle) if type(store) is PosixStore else store
        finally:
            os.close(handle)
    finally:
        os.close(above)


def _refuse_nested(place: str, root: str, to: str) -> None:
    """Raises UsageError where one lies in the other."""
    if os.path.commonpath((place, root)) in (place, root):
        raise UsageError(f"--to {to}: {place} lies in {root}, or the other way round")


def _made_for_owner(place: str, above: int, source: str) -> int:
    """A descriptor of the root in the archive, with the owner, the group and the mode of the run's: whoever could read
    and delete the checkpoints can, and nobody else. Raises CheckpointError when it is another's, UntrustedPlace."""
    uid = owner.of(source)
    gid, mode = os.getegid(), by_descriptor.DIRECTORY_MODE
    if uid is not None:
        gid, mode = owner.in_child(lambda: [os.stat(source).st_gid, stat.S_IMODE(os.stat(source).st_mode)], uid, source)
    name = os.path.basename(place)
    try:
        os.mkdir(name, mode if uid is None else 0o700, dir_fd=above)
        fresh = True
    except FileExistsError:
        fresh = False
    try:
        handle = os.open(name, files.DIRECTORY, dir_fd=above)
    except OSError as err:
        err.filename = place
        raise
    try:
        if uid is None:
            require_ours(os.fstat(handle), place, handle)
        elif fresh:
            os.fchown(handle, uid, gid)
            os.fchmod(handle, mode & 0o777)
        elif os.fstat(handle).st_uid != uid:
            raise CheckpointError(
                f"{place} belongs to uid {os.fstat(handle).st_uid}, and the run to uid {uid}",
                hint=f"chown -R {uid}:{gid} {place}",
            )
        return handle
    except BaseException:
        os.close(handle)
        raise
