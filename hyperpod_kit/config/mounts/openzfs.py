"""FSx for OpenZFS: its keys, its volumes and AWS's short form of it."""

from __future__ import annotations

import re
from typing import Iterator, Optional

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.mounts.form import MountForm, StorageConfig
from hyperpod_kit.config.mounts.fsx_names import FSX_DNS
from hyperpod_kit.config.settings import ProvisioningParameters, Settings
from hyperpod_kit.config.written import WrittenMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount

EXPORT = re.compile(r"/fsx(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
STORAGE_CONFIG = StorageConfig({"DnsName": "dns_name"}, "openzfs", "/home", ("fsx_openzfs_dns_name",))


def short_form(parameters: ProvisioningParameters) -> Optional[WrittenMount]:
    """The mount at /home that `fsx_openzfs_dns_name` stands for."""
    dns_name = parameters.passthrough.get("fsx_openzfs_dns_name")
    if not isinstance(dns_name, str) or not dns_name:
        return None
    return WrittenMount(OpenZfsMount(STORAGE_CONFIG.name, STORAGE_CONFIG.path, dns_name), "fsx_openzfs_dns_name")


def names(settings: Settings) -> Iterator[Finding]:
    """The DNS name is what FSx gives out, and every volume lies below /fsx."""
    for mount, place in settings.written(OpenZfsMount):
        if not FSX_DNS.fullmatch(mount.dns_name):
            yield Finding(
                "HPK-F004",
                place if place == "fsx_openzfs_dns_name" else f"{place}.dns_name",
                f"`{mount.dns_name}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            )
        if not EXPORT.fullmatch(mount.export):
            yield Finding(
                "HPK-F005",
                f"{place}.export",
                f"`{mount.export}` is not the path of an OpenZFS volume",
                "Use /fsx for the root volume, or /fsx/NAME",
            )


KIND = MountForm(
    fields={
        "export": "Path of the volume: /fsx, or /fsx/NAME.",
    },
    nicknames=("fsx-openzfs", "zfs"),
    short_form=short_form,
    storage_config=STORAGE_CONFIG,
    rules=(names,),  # HPK-F
)
