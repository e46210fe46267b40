"""InstanceStorageConfigs of a cluster's groups -> volumes of the groups, and FSx mounts of the whole file."""

from __future__ import annotations

from typing import Any, Mapping, Sequence


class ImportedStorage:
    """Takes the storage of one group after the other. `groups`: the names of all of them."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._all = list(groups)
        self._fsx: dict[tuple[str, str, str, str], list[str]] = {}
        self.notes: list[str] = []

    def of_group(self, group: str, configs: Any) -> dict[str, Any]:
        """The keys of the group that its EBS volumes become; FSx is kept for `mounts`."""
        keys: dict[str, Any] = {}
        for config in configs if isinstance(configs, list) else ():
            kind, given = next(iter(config.items())) if isinstance(config, Mapping) and config else ("", None)
            if kind == "EbsVolumeConfig" and isinstance(given, Mapping):
                keys |= _volume(given)
            elif kind in ("FsxLustreConfig", "FsxOpenZfsConfig") and isinstance(given, Mapping):
                lustre = kind == "FsxLustreConfig"
                path = str(given.get("MountPath") or ("/fsx" if lustre else "/home"))
                mount = ("lustre" if lustre else "openzfs", str(given.get("DnsName")), path)
                self._fsx.setdefault((*mount, str(given.get("MountName", ""))), []).append(group)
            else:
                self.notes.append(f"group `{group}`: InstanceStorageConfigs.{kind or '?'}: there is no key for it")
        return keys

    def mounts(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """One mount for each file system and path, with the groups that have it where those are not all.

        The short forms of AWS's file are taken out of `values` where they name the same file system.
        """
        mounts = []
        names: set[str] = set()
        for (kind, dns_name, path, mount_name), groups in self._fsx.items():
            name = base = "fsx" if kind == "lustre" else "openzfs"
            number = 1
            while name in names:
                number += 1
                name = f"{base}-{number}"
            names.add(name)
            mount: dict[str, Any] = {"kind": kind, "name": name, "path": path, "dns_name": dns_name}
            if kind == "lustre":
                mount["mount_name"] = mount_name
            if sorted(groups) != sorted(self._all):
                mount["groups"] = groups
            mounts.append(mount)
            short = "fsx_dns_name" if kind == "lustre" else "fsx_openzfs_dns_name"
            if values.get(short) == dns_name:
                del values[short]
                if kind == "lustre":
                    values.pop("fsx_mountname", None)
        return mounts


def _volume(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("RootVolume"):
        return {"root_kms_key": given.get("VolumeKmsKeyId")}
    keys = {"ebs_gib": given.get("VolumeSizeInGB"), "ebs_kms_key": given.get("VolumeKmsKeyId")}
    return {key: value for key, value in keys.items() if value is not None}
