"""What a run could do without, by the rules of retention, with those that stay proved to their last byte."""

from __future__ import annotations

import fcntl
import os
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.repository import identity, layout, retention, verify
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import Absent, CheckpointError, UsageError
from hyperpod_kit.storage.tier.rules import Pool, TierItem
from hyperpod_kit.untrusted import owner


class TierRoot(NamedTuple):
    """A run's root. `whose`: what must be true when something is deleted; `stay`: (attempt, why)."""

    store: Store
    whose: identity.RunIdentity
    items: tuple[TierItem, ...]
    stay: tuple[tuple[str, str], ...]


def intact(store: Store, attempt: str) -> bool:
    """Whether every byte is what was committed."""
    try:
        verify.verify_checkpoint(store, attempt)
        return True
    except (CheckpointError, OSError):
        return False


def look(root: str, keep: int) -> TierRoot:
    """The `keep` newest valid ones are read whole: what is damaged of them stays, and does not count.

    Raises CheckpointError when the root is nobody's, UsageError for S3, Absent when it is no directory, OSError.
    """
    if not is_path(root):
        raise UsageError(f"{root}: expected a directory with a run's checkpoints", hint="for S3: lifecycle rules of S3")
    if not os.path.isdir(root):
        raise Absent(f"{root} is no directory: expected one with a run's checkpoints", hint=f"findmnt --target {root}")
    store = open_store(os.path.realpath(root))
    whose = identity.find_identity(store)
    if whose is None:
        raise CheckpointError(f"{root} has no {layout.RUN_FILE}: nobody says whose checkpoints these are")
    found = _proved(store, retention.survey(store, run_id=whose.run_id, sound=intact), keep)
    planned = retention.plan(found, Latest(keep))
    states = {item.facts.attempt: item for item in found}
    items, stay = [], list(planned.keep)
    for attempt, _ in planned.delete:
        item = states[attempt]
        if item.state != retention.VALID:
            stay.append((attempt, f"{item.state}: hyperpod-kit checkpoint prune removes it"))
        elif is_open(store.url, attempt):
            stay.append((attempt, "a program has it open"))
        else:
            items.append(TierItem(store.url, attempt, item.facts.time, _size(store.url, attempt), pool_of(store.url)))
    return TierRoot(store, whose, tuple(items), tuple(stay))


def as_owner(root: str, keep: int) -> tuple[TierRoot, Pool]:
    """`look`, and the file system, as the owner of the root where this process is root: no mount of a user's holds it
    up for longer than its deadline, and nothing is read that the owner could not read.

    Raises as `look`, Unreachable.
    """

    def work() -> list[Any]:
        seen = look(root, keep)
        return [
            seen.store.url,
            list(seen.whose),
            [vars(item) for item in seen.items],
            seen.stay,
            vars(pool(seen.store.url)),
        ]

    if not is_path(root):
        raise UsageError(f"{root}: expected a directory with a run's checkpoints", hint="for S3: lifecycle rules of S3")
    url, whose, items, stay, file_system = owner.as_owner(root, work)
    found = tuple(TierItem(**item) for item in items)
    seen = TierRoot(open_store(url), identity.RunIdentity(*whose), found, tuple((name, why) for name, why in stay))
    return seen, Pool(**file_system)


def _proved(store: Store, found: list[retention.Item], keep: int) -> list[retention.Item]:
    """With those that are not whole, of the newest, as what cannot be judged."""
    proved, items = 0, []
    for item in found:
        if item.state == retention.VALID and proved < keep:
            if intact(store, item.facts.attempt):
                proved += 1
            else:
                item = item._replace(state=retention.UNJUDGED, note="its bytes are not those that were saved")
        items.append(item)
    return items


def may_go(store: Store, whose: identity.RunIdentity, attempt: str, keep: int) -> str:
    """Why it may not go by now, nothing when it may: asked again just before it is deleted. Raises as `look`."""
    planned = retention.plan(retention.survey(store, run_id=whose.run_id), Latest(keep))
    if attempt not in dict(planned.delete):
        return dict(planned.keep).get(attempt, "it is gone")
    return "a program has it open" if is_open(store.url, attempt) else ""


def is_open(root: str, attempt: str) -> bool:
    """Whether a process of this machine has a file of it open, where the file system can tell (a lease of fcntl(2))."""
    folder = os.path.join(root, attempt)
    for name in os.listdir(folder):
        try:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return True
        except OSError:
            return False  # network file systems have no leases; who restores says so in leases/
        finally:
            os.close(handle)
    return False


def pool_of(root: str) -> str:
    """A name for the file system."""
    return str(os.stat(root).st_dev)


def pool(root: str) -> Pool:
    """As df counts: what is reserved for root is no room. Raises OSError."""
    room = os.statvfs(root)
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    return Pool(pool_of(root), used, used + room.f_bavail * room.f_frsize)


def _size(root: str, attempt: str) -> int:
    with os.scandir(os.path.join(root, attempt)) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
