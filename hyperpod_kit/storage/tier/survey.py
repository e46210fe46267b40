"""What a run could do without, by the rules of retention, with those that stay proved to their last byte."""

from __future__ import annotations

import fcntl
import os
from typing import Any, NamedTuple

from hyperpod_kit.checkpoint.repository import retention
from hyperpod_kit.checkpoint.repository.format import layout
from hyperpod_kit.checkpoint.repository.policy import Latest
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.records import identity
from hyperpod_kit.checkpoint.repository.store.base import Store
from hyperpod_kit.checkpoint.repository.store.open import is_path, open_store
from hyperpod_kit.errors import Absent, CheckpointError, UsageError
from hyperpod_kit.storage.tier.rules import Pool, TierItem
from hyperpod_kit.untrusted import owner


class TierRoot(NamedTuple):
    """A run's root. `run`: what must be true when something is deleted; `stay`: (attempt, why)."""

    store: Store
    run: identity.RunIdentity
    items: tuple[TierItem, ...]
    stay: tuple[tuple[str, str], ...]


def is_intact_by_digest_of_every_byte(store: Store, checkpoint_id: str) -> bool:
    """Whether every byte is what was committed."""
    try:
        verify.verify_checkpoint(store, checkpoint_id)
        return True
    except (CheckpointError, OSError):
        return False


def survey_root_verifying_newest(root: str, keep: int) -> TierRoot:
    """Survey a root.

    The `keep` newest valid checkpoints are read whole: what is damaged of them stays, and does not count.

    Raises CheckpointError when the root is nobody's, UsageError for S3, Absent when it is no directory, OSError.
    """
    if not is_path(root):
        raise UsageError(f"{root}: expected a directory with a run's checkpoints", hint="for S3: lifecycle rules of S3")
    if not os.path.isdir(root):
        raise Absent(
            f"{root} is not a directory: expected one with a run's checkpoints", hint=f"findmnt --target {root}"
        )
    store = open_store(os.path.realpath(root))
    run = identity.read_or_infer_identity(store)
    if run is None:
        raise CheckpointError(f"{root} has no {layout.RUN_FILE}: the run of these checkpoints is unknown")
    checkpoints = _mark_damaged_among_newest(
        store,
        retention.judge_all_checkpoints(store, run_id=run.run_id, is_complete=is_intact_by_digest_of_every_byte),
        keep,
    )
    planned = retention.plan(checkpoints, Latest(keep))
    states = {item.facts.checkpoint_id: item for item in checkpoints}
    items, stay = [], list(planned.keep)
    for attempt, _ in planned.delete:
        item = states[attempt]
        if item.state != retention.VALID:
            stay.append((attempt, f"{item.state}: hyperpod-kit checkpoint prune removes it"))
        elif is_open_by_a_process(store.url, attempt):
            stay.append((attempt, "a program has it open"))
        else:
            items.append(
                TierItem(
                    store.url,
                    attempt,
                    item.facts.time,
                    _size_on_disk(store.url, attempt),
                    pool_device_number(store.url),
                )
            )
    return TierRoot(store, run, tuple(items), tuple(stay))


def survey_root_and_pool_as_owner(root: str, keep: int) -> tuple[TierRoot, Pool]:
    """Survey a root, and its file system, as the owner of the root where this process is root: no mount of a user's
    holds it up for longer than its deadline, and nothing is read that the owner could not read.

    Raises as `survey_root_verifying_newest`, Unreachable.
    """

    def work() -> list[Any]:
        surveyed = survey_root_verifying_newest(root, keep)
        return [
            surveyed.store.url,
            list(surveyed.run),
            [vars(item) for item in surveyed.items],
            surveyed.stay,
            vars(read_pool(surveyed.store.url)),
        ]

    if not is_path(root):
        raise UsageError(f"{root}: expected a directory with a run's checkpoints", hint="for S3: lifecycle rules of S3")
    url, run, items, stay, file_system = owner.run_as_owner_in_child_if_root(root, work)
    tier_items = tuple(TierItem(**item) for item in items)
    surveyed = TierRoot(
        open_store(url), identity.RunIdentity(*run), tier_items, tuple((name, reason) for name, reason in stay)
    )
    return surveyed, Pool(**file_system)


def _mark_damaged_among_newest(store: Store, checkpoints: list[retention.Item], keep: int) -> list[retention.Item]:
    """Read the `keep` newest valid ones; one that is not whole becomes one that cannot be judged."""
    verified, items = 0, []
    for item in checkpoints:
        if item.state == retention.VALID and verified < keep:
            if is_intact_by_digest_of_every_byte(store, item.facts.checkpoint_id):
                verified += 1
            else:
                item = item._replace(state=retention.UNJUDGED, note="its bytes differ from those that were saved")
        items.append(item)
    return items


def reason_to_retain(store: Store, run: identity.RunIdentity, checkpoint_id: str, keep: int) -> str:
    """Return why a checkpoint may not go by now, "" when it may: checked again just before it is deleted.

    Raises as `survey_root_verifying_newest`.
    """
    planned = retention.plan(retention.judge_all_checkpoints(store, run_id=run.run_id), Latest(keep))
    if checkpoint_id not in dict(planned.delete):
        return dict(planned.keep).get(checkpoint_id, "it no longer exists")
    if is_open_by_a_process(store.url, checkpoint_id):
        return "a program has it open"
    return ""


def is_open_by_a_process(root: str, checkpoint_id: str) -> bool:
    """Whether a process of this machine has a file of it open, where the file system can tell (a lease of fcntl(2))."""
    folder = os.path.join(root, checkpoint_id)
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


def pool_device_number(root: str) -> str:
    """Name the file system."""
    return str(os.stat(root).st_dev)


def read_pool(root: str) -> Pool:
    """Read its bytes as df counts them: what is reserved for root is no room. Raises OSError."""
    room = os.statvfs(root)
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    return Pool(pool_device_number(root), used, used + room.f_bavail * room.f_frsize)


def _size_on_disk(root: str, checkpoint_id: str) -> int:
    with os.scandir(os.path.join(root, checkpoint_id)) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
