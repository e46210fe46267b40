"""Sums as people ask for them: by user, group, directory, run, kind."""

from __future__ import annotations

import grp
import pwd
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Iterable

from hyperpod_kit.storage.usage.ledger import UsageLedger, UsageRow
from hyperpod_kit.system import mountinfo
from hyperpod_kit.untrusted import owner
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json

if TYPE_CHECKING:
    from hyperpod_kit.storage.usage.growth import Forecast, Growth
    from hyperpod_kit.storage.usage.retained import Deletable


@dataclass(frozen=True)
class Total:
    """A sum: inodes or objects, bytes as `ls` says, bytes as `du` says."""

    entries: int = 0
    size: int = 0
    allocated: int = 0

    def __add__(self, other: UsageRow | Total) -> Total:
        return Total(self.entries + other.entries, self.size + other.size, self.allocated + other.allocated)


GB = 10**9
AGE_NAMES = ("over a year", "90 days to a year", "30 to 90 days", "7 to 30 days", "1 to 7 days", "less than a day")
"""Of the classes in scan.Ages."""


@dataclass(frozen=True)
class AgeClass:
    """Files, or objects, of one age by `what`: written or read."""

    what: str
    name: str
    entries: int
    allocated: int


@dataclass(frozen=True)
class UsageReport:
    """What was found below `root`. Each mapping has the largest first; a directory has what is below it too.

    `room`: bytes of the file system (total, free), None for a bucket; `unread`: (directory, why), the first of
    `unread_count`; `elsewhere`: mounts below the root, which were not counted; `ages`: the oldest first, without files
    that have several names; `reads_kept`: whether the file system notes when a file is read; `growth` and
    `forecast`: None where too few of the `history_days` are known; `price`: US dollars for a GB kept a month.
    """

    root: str
    total: Total
    users: dict[str, Total]
    groups: dict[str, Total]
    directories: dict[str, Total]
    runs: dict[str, Total]
    kinds: dict[str, Total]
    room: tuple[int, int] | None = None
    unread: list[tuple[str, str]] = field(default_factory=list)
    unread_count: int = 0
    elsewhere: list[str] = field(default_factory=list)
    deletable: list[Deletable] = field(default_factory=list)
    ages: list[AgeClass] = field(default_factory=list)
    reads_kept: bool = True
    growth: Growth | None = None
    forecast: Forecast | None = None
    history_days: int = 0
    price: float | None = None

    def monthly_cost_usd(self, part: Total) -> float | None:
        """Compute the US dollars a month of a part; None without a price."""
        if self.price is None:
            return None
        return part.allocated / GB * self.price

    def _total_as_json(self, part: Total) -> dict[str, Any]:
        share = 0.0
        if self.total.allocated:
            share = part.allocated / self.total.allocated
        body = {**vars(part), "share": share}
        if self.price is not None:
            body["usd_a_month"] = self.monthly_cost_usd(part)
        return body

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: bytes and counts."""
        sums = ("users", "groups", "directories", "runs", "kinds")
        return {
            "root": self.root,
            "total": self._total_as_json(self.total),
            **{name: {key: self._total_as_json(total) for key, total in getattr(self, name).items()} for name in sums},
            "room": None if self.room is None else {"total": self.room[0], "free": self.room[1]},
            "unread": [{"path": path, "why": reason} for path, reason in self.unread],
            "unread_count": self.unread_count,
            "elsewhere": self.elsewhere,
            "ages": [vars(age_class) for age_class in self.ages],
            "reads_kept": self.reads_kept,
            "history_days": self.history_days,
            "growth": None if self.growth is None else dataclass_to_json(self.growth),
            "full_in_days": None if self.forecast is None else dataclass_to_json(self.forecast),
            "deletable": [dataclass_to_json(checkpoint) for checkpoint in self.deletable],
        }


def make_report(root: str, ledger: UsageLedger, access_point_names: Iterable[str] = ()) -> UsageReport:
    """Make the report from the sums of a walk or a count that has ended.
    `access_point_names`: names of access points, which are no directories."""
    users: dict[str, Total] = {}
    groups: dict[str, Total] = {}
    directories: dict[str, Total] = {}
    runs: dict[str, Total] = {}
    kinds: dict[str, Total] = {}
    total, marks = Total(), frozenset(access_point_names)
    for row in ledger.iterate_sums():
        total += row
        kinds[row.kind] = kinds.get(row.kind, Total()) + row
        if row.uid >= 0:
            users[str(row.uid)] = users.get(str(row.uid), Total()) + row
            groups[str(row.gid)] = groups.get(str(row.gid), Total()) + row
        if row.run:
            runs[row.run] = runs.get(row.run, Total()) + row
        paths: Iterable[str] = [row.counted_path]
        if row.counted_path not in marks:
            paths = _path_and_ancestors(row.counted_path, root)
        for path in paths:
            directories[path] = directories.get(path, Total()) + row
    room = None
    if not root.startswith("s3://"):
        total_room, free = owner.run_as_owner_in_child_if_root(root, lambda: shutil.disk_usage(root)[::2])
        room = (total_room, free)
    return UsageReport(
        root,
        total,
        _sort_largest_first(_totals_by_name(users, lambda number: pwd.getpwuid(number).pw_name)),
        _sort_largest_first(_totals_by_name(groups, lambda number: grp.getgrgid(number).gr_name)),
        _sort_largest_first(directories),
        _sort_largest_first(runs),
        _sort_largest_first(kinds),
        room,
        ledger.unread_directories(),
        ledger.unread_count(),
        ledger.skipped_mount_points(),
        ages=[
            AgeClass(what, AGE_NAMES[age], count, allocated)
            for what, age, count, allocated in ledger.iterate_age_classes()
        ],
        reads_kept=_has_reliable_access_times(root),
    )


def _has_reliable_access_times(root: str) -> bool:
    """Whether a mount keeps times of reading: not where it says `noatime`, nor over FUSE, whose times of reading are
    made up (Mountpoint's are)."""
    if root.startswith("s3://"):
        return False
    table = [
        entry
        for entry in mountinfo.parse_mountinfo(mountinfo.read_mountinfo())
        if mountinfo.is_same_or_below(root, entry.path) or entry.path == root
    ]
    mount = max(table, key=lambda entry: len(entry.path), default=None)
    return mount is not None and "noatime" not in mount.options and not mount.fs_type.startswith("fuse")


def _path_and_ancestors(path: str, root: str) -> Iterable[str]:
    """Yield a directory and those above it, up to the root."""
    top = root.rstrip("/")
    while mountinfo.is_same_or_below(path, top or "/") and len(path) > len(top):
        yield path
        path = path.rpartition("/")[0]
    yield root


def _sort_largest_first(totals: dict[str, Total]) -> dict[str, Total]:
    return dict(sorted(totals.items(), key=lambda pair: (-pair[1].allocated, -pair[1].entries, pair[0])))


def _totals_by_name(totals: dict[str, Total], name_of_id: Callable[[int], str]) -> dict[str, Total]:
    named: dict[str, Total] = {}
    for number, total in totals.items():
        try:
            label = name_of_id(int(number))
        except (KeyError, OverflowError):
            label = number  # of a user that this machine does not know, or who has left
        named[label] = named.get(label, Total()) + total
    return named
