"""FSx for Lustre: its names, and AWS's short form of it."""

from __future__ import annotations

from typing import Iterator, Optional

from hyperpod_kit.config.mounts.form import MountForm, ShortForm, StorageConfig
from hyperpod_kit.config.mounts.fsx_names import FSX_DNS
from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.patterns import Pattern
from hyperpod_kit.config.settings.settings import ProvisioningParameters, Settings
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.scripts import BEFORE_MOUNTS

STORAGE_CONFIG = StorageConfig({"DnsName": "dns_name", "MountName": "mount_name"}, "fsx", "/fsx")


def mount_from_short_form(parameters: ProvisioningParameters) -> Optional[LustreMount]:
    """The mount at /fsx that `fsx_dns_name` and `fsx_mountname` stand for."""
    if not parameters.fsx_dns_name or not parameters.fsx_mountname:
        return None
    return LustreMount(STORAGE_CONFIG.name, STORAGE_CONFIG.path, parameters.fsx_dns_name, parameters.fsx_mountname)


def check_fsx_keys_come_together(settings: Settings) -> Iterator[Finding]:
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


def check_something_sets_efa_up(settings: Settings) -> Iterator[Finding]:
    """A mount over EFA has a script that installs FSx's set-up of it before anything is mounted."""
    for mount, at in settings.mounts_of_kind(LustreMount):
        groups = [group for group in settings.cluster.groups if mount.is_carried_by(group.role, group.name)]
        early = [listed.script for listed in settings.scripts if listed.script.when == BEFORE_MOUNTS]
        if mount.efa and not any(script.runs_on(group.role, group.name) for script in early for group in groups):
            yield Finding(
                "HPK-F007",
                f"{at}.efa",
                "no script runs before the mounts that could install FSx's set-up of EFA: where the image has none, "
                "nodes mount by TCP and say nothing",
                "Add the script (mounts, `lustre`), or set efa to false",
                WARNING,
            )


KIND = MountForm(
    fields={
        "dns_name": Field(
            "DNS name of the file system, as FSx shows it.",
            pattern=Pattern(
                "HPK-F001",
                FSX_DNS,
                "`{value}` is not the DNS name of an FSx file system",
                "Write it like fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
            ),
        ),
        "mount_name": Field(
            "Mount name of the file system, as FSx shows it.",
            pattern=Pattern(
                "HPK-F002",
                r"[A-Za-z0-9]{1,8}",
                "`{value}` is not a Lustre mount name",
                "It is 1 to 8 letters and digits: see `aws fsx describe-file-systems`",
            ),
        ),
        "efa": Field("Whether it is mounted over EFA, once that is set up."),
    },
    nicknames=("fsx", "fsx-lustre"),
    short_form=ShortForm({"dns_name": "fsx_dns_name", "mount_name": "fsx_mountname"}, mount_from_short_form),
    storage_config=STORAGE_CONFIG,
    rules=(check_fsx_keys_come_together, check_something_sets_efa_up),  # HPK-F
)
