"""When a directory is alerted of: from 80 % of its limit, and again only after it was below 75 %."""

from __future__ import annotations

from hyperpod_kit.storage.alerts.alert import Alert
from hyperpod_kit.storage.quota.limits import QuotaUsed
from hyperpod_kit.system.fullness import is_nearly_full


def quota_alert_if_nearly_full(used: QuotaUsed, was_standing: bool, to: tuple[str, ...]) -> Alert | None:
    """Make the alert of a directory that is nearly full; `was_standing`: whether it was so at the last look."""
    if not is_nearly_full(used.share, was_standing):
        return None
    return Alert(used.directory, f"{used.directory} is {used.share:.0%} full", describe_usage(used), to)


def describe_usage(used: QuotaUsed) -> str:
    """Describe usage in a sentence for every sink."""
    limits = used.limits
    room, files = limits.hard_bytes or limits.soft_bytes, limits.hard_files or limits.soft_files
    parts = []
    if room:
        parts.append(f"{used.bytes:,} of {room:,} bytes")
    if files and used.files is not None:
        parts.append(f"{used.files:,} of {files:,} files")
    grace = ""
    if used.grace:
        grace = f" (grace: {used.grace})"
    return (
        f"{used.directory} is {used.share:.1%} full: {', '.join(parts)}{grace}. At the limit nothing can be "
        f"written, no checkpoint either. What fills it, and what may be deleted: "
        f"hyperpod-kit storage usage {used.directory}"
    )
