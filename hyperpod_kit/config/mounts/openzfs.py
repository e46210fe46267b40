"""FSx for OpenZFS: its names, and AWS's short form of it."""

from __future__ import annotations

from typing import Optional

from hyperpod_kit.config.mounts.form import MountForm, ShortForm, StorageConfig
from hyperpod_kit.config.mounts.fsx_names import FSX_DNS
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.config.settings.settings import ProvisioningParameters
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount

STORAGE_CONFIG = StorageConfig({"DnsName": "dns_name"}, "openzfs", "/home")


def mount_from_short_form(parameters: ProvisioningParameters) -> Optional[OpenZfsMount]:
    """The mount at /home that `fsx_openzfs_dns_name` stands for."""
    dns_name = parameters.passthrough.get("fsx_openzfs_dns_name")
    if not isinstance(dns_name, str) or not dns_name:
        return None
    return OpenZfsMount(STORAGE_CONFIG.name, STORAGE_CONFIG.path, dns_name)


KIND = MountForm(
    fields={
        "dns_name": Field(
            "DNS name of the file system, as FSx shows it.",
            pattern=Pattern(
                "HPK-F004",
                FSX_DNS,
                "`{value}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            ),
        ),
        "export": Field(
            "Path of the volume: /fsx, or /fsx/NAME.",
            pattern=Pattern(
                "HPK-F005",
                r"/fsx(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*",
                "`{value}` is not the path of an OpenZFS volume",
                "Use /fsx for the root volume, or /fsx/NAME",
            ),
        ),
    },
    nicknames=("fsx-openzfs", "zfs"),
    short_form=ShortForm({"dns_name": "fsx_openzfs_dns_name"}, mount_from_short_form),
    storage_config=STORAGE_CONFIG,
    rules=(),
)
