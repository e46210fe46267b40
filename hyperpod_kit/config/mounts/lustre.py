"""FSx for Lustre: its keys, its names and AWS's short form of it."""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.mounts.form import MountForm, StorageConfig
from hyperpod_kit.config.mounts.fsx_names import FSX_DNS
from hyperpod_kit.config.settings import ProvisioningParameters, Settings
from hyperpod_kit.config.written import WrittenMount
from hyperpod_kit.model.mounts.lustre import LustreMount

LUSTRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,8}")
STORAGE_CONFIG = StorageConfig(
    {"DnsName": "dns_name", "MountName": "mount_name"}, "fsx", "/fsx", ("fsx_dns_name", "fsx_mountname")
)


def short_form(parameters: ProvisioningParameters) -> Optional[WrittenMount]:
    """The mount at /fsx that `fsx_dns_name` and `fsx_mountname` stand for."""
    if not parameters.fsx_dns_name or not parameters.fsx_mountname:
        return None
    mount = LustreMount(STORAGE_CONFIG.name, STORAGE_CONFIG.path, parameters.fsx_dns_name, parameters.fsx_mountname)
    return WrittenMount(mount, "fsx_dns_name")


def names(settings: Settings) -> Iterator[Finding]:
    """The DNS name and the mount name are what FSx gives out."""
    for mount, place in settings.written(LustreMount):
        short = place == "fsx_dns_name"
        if not FSX_DNS.fullmatch(mount.dns_name):
            yield Finding(
                "HPK-F001",
                place if short else f"{place}.dns_name",
                f"`{mount.dns_name}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            )
        if not LUSTRE_NAME.fullmatch(mount.mount_name):
            yield Finding(
                "HPK-F002",
                "fsx_mountname" if short else f"{place}.mount_name",
                f"`{mount.mount_name}` is not a Lustre mount name",
                "It is 1 to 8 letters and digits: see `aws fsx describe-file-systems`",
            )


def both_keys(settings: Settings) -> Iterator[Finding]:
    """AWS's two FSx keys come together."""
    have = {"fsx_dns_name": settings.parameters.fsx_dns_name, "fsx_mountname": settings.parameters.fsx_mountname}
    if sum(1 for value in have.values() if value) == 1:
        missing = next(key for key, value in have.items() if not value)
        yield Finding(
            "HPK-F003",
            missing,
            "missing: the two FSx keys belong together",
            f'Add "{missing}", or remove the other one',
        )


KIND = MountForm(
    fields={
        "mount_name": "Mount name of the file system, as FSx shows it.",
        "efa": "Whether it is mounted over EFA, once that is set up.",
    },
    nicknames=("fsx", "fsx-lustre"),
    short_form=short_form,
    storage_config=STORAGE_CONFIG,
    rules=(names, both_keys),  # HPK-F
)
