"""NVMe scratch: whose it is, and who may write."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.config.mounts.form import MountForm
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.instance_types import has_instance_store
from hyperpod_kit.model.mounts.base import is_on_login_or_compute_nodes
from hyperpod_kit.model.mounts.nvme import NvmeMount

MODE = Pattern("HPK-N002", r"0?[0-3]?[0-7]{3}", "`{value}` is not an octal mode", 'Write it like "0755" or "1777"')


def check_uid_gid_and_world_writable_mode(settings: Settings) -> Iterator[Finding]:
    """Report impossible ids, and modes that let everybody write without `world_writable` or the sticky
    bit."""
    for mount, at in settings.mounts_of_kind(NvmeMount):
        for key, number in (("uid", mount.uid), ("gid", mount.gid)):
            if not 0 <= number < 2**32 - 1:
                yield Finding(
                    "HPK-N001", f"{at}.{key}", f"{number} is not an id of a user or a group", "Use 0 to 4294967294"
                )
        if not MODE.fits(mount.mode):
            continue
        everybody = bool(int(mount.mode, 8) & 0o002)
        if everybody and not mount.world_writable:
            yield Finding(
                "HPK-N003",
                f"{at}.mode",
                f"`{mount.mode}` lets everybody write",
                "Set uid and gid to the user who writes and mode to 0755; or world_writable to true",
            )
        if everybody and not int(mount.mode, 8) & 0o1000:
            yield Finding(
                "HPK-N004",
                f"{at}.mode",
                f"with `{mount.mode}` everybody may remove everybody's files",
                'Use "1777": the sticky bit leaves each file to its owner',
            )
        if mount.world_writable and not everybody:
            yield Finding(
                "HPK-N005",
                f"{at}.world_writable",
                f"the mode `{mount.mode}` does not let everybody write",
                'Remove it, or set mode to "1777"',
            )


def check_groups_have_local_disk(settings: Settings) -> Iterator[Finding]:
    """Every group that must have scratch has instance types with local disks."""
    for mount, at in settings.mounts_of_kind(NvmeMount):
        if not mount.required:
            continue
        for group in settings.cluster.groups:
            without_disk = [name for name in group.types if not has_instance_store(name)]
            if mount.is_carried_by(group.role, group.name) and without_disk:
                yield Finding(
                    "HPK-N006",
                    f"{at}.groups",
                    f"nodes of `{group.name}` would fail: {', '.join(without_disk)} has no local disk",
                    "Name the groups that have one, or set required to false",
                    WARNING,
                )


def check_some_user_can_write(settings: Settings) -> Iterator[Finding]:
    """Scratch has somebody who writes to it: users, or the cache of another mount, which is root's."""
    caches = [mount.cache_path for mount in settings.mounts if mount.cache_path is not None]
    for mount, at in settings.mounts_of_kind(NvmeMount):
        if not (MODE.fits(mount.mode) and is_on_login_or_compute_nodes(mount) and mount.only_root_writes()):
            continue
        if any(path.startswith(mount.path.rstrip("/") + "/") for path in caches):
            continue
        yield Finding(
            "HPK-N007",
            f"{at}.mode",
            f"only root can write to `{mount.path}`: it belongs to owner {mount.uid} and group {mount.gid} with mode "
            f"{mount.mode}",
            'Set uid to the user who writes; or mode to "1777" and world_writable to true',
            WARNING,
        )


KIND = MountForm(
    fields={
        "uid": Field("Owner of the directory."),
        "gid": Field("Group of the directory."),
        "mode": Field("Mode of the directory, octal, in quotes.", pattern=MODE),
    },
    nicknames=("scratch", "instance-store"),
    short_form=None,
    storage_config=None,
    rules=(check_uid_gid_and_world_writable_mode, check_some_user_can_write, check_groups_have_local_disk),  # HPK-N
)
