"""A limit of a btrfs subvolume: a qgroup. It has no soft limit and counts no files."""

from __future__ import annotations

import os

from hyperpod_kit.run import Runner
from hyperpod_kit.storage.quota.limits import QuotaError, QuotaLimits, QuotaUsed
from hyperpod_kit.untrusted import parse

SUBVOLUME_INODE = 256


class Btrfs:
    """`btrfs qgroup`, of btrfs-progs."""

    name = "btrfs"
    counts_files = False

    def __init__(self, runner: Runner, mount: str) -> None:
        self._runner = runner
        self._mount = mount

    def read_usage(self, directory: str) -> QuotaUsed:
        """See QuotaBackend."""
        _require_subvolume(directory)
        # What was written a moment ago counts only once it is on disk.
        completed = self._runner.run(["btrfs", "qgroup", "show", "--sync", "--raw", "-reF", directory], check=False)
        if completed.returncode:
            hint = f"hyperpod-kit storage quota set {directory} --bytes SIZE"
            raise QuotaError(f"{directory}: {(completed.stderr or completed.stdout).strip()}", hint=hint)
        for line in completed.stdout.splitlines():
            fields = line.split()
            if len(fields) < 5 or not fields[0].startswith("0/"):
                continue
            used = parse.parse_decimal(fields[1])
            if used is not None:
                return QuotaUsed(directory, used, None, QuotaLimits(hard_bytes=parse.parse_decimal(fields[3]) or 0))
        raise QuotaError(f"{directory}: `btrfs qgroup show` lists no qgroup: {completed.stdout.strip()[-200:]}")

    def build_limit_commands(self, directory: str, limits: QuotaLimits, grace: int) -> list[list[str]]:
        """See QuotaBackend."""
        _require_subvolume(directory)
        if limits.soft_bytes or limits.soft_files or limits.hard_files:
            raise QuotaError(f"{directory}: btrfs has a single limit, in bytes", hint="--bytes SIZE alone")
        limit = str(limits.hard_bytes or "none")
        return [["btrfs", "quota", "enable", self._mount], ["btrfs", "qgroup", "limit", limit, directory]]


def _require_subvolume(directory: str) -> None:
    if os.stat(directory).st_ino != SUBVOLUME_INODE:
        raise QuotaError(
            f"{directory} is a btrfs directory but not a subvolume; only subvolumes have limits",
            hint=f"btrfs subvolume create {directory}.new, and move its contents there",
        )
