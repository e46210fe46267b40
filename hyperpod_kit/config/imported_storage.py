"""InstanceStorageConfigs of a cluster's groups -> volumes of the groups, and mounts of the whole file."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from hyperpod_kit.config.mounts.form import StorageConfig
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.model.mounts.kinds import KINDS


class _Storage(NamedTuple):
    """A kind of mount that an entry of InstanceStorageConfigs can name. `short`: keys of its short form."""

    kind: str
    config: StorageConfig
    short: tuple[str, ...]


_BY_ENTRY = {
    KINDS[kind].traits.storage_config: _Storage(
        kind, form.storage_config, tuple(form.short_form.keys.values()) if form.short_form else ()
    )
    for kind, form in FORMS.items()
    if form.storage_config is not None
}


class ImportedStorage:
    """Takes the storage of one group after the other. `groups`: the names of all of them."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._all = list(groups)
        self._mounts: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
        self.notes: list[str] = []

    def add_group_storage(self, group: str, configs: Any) -> dict[str, Any]:
        """Return the group's keys for its EBS volumes, and keep its file systems for
        `build_mounts_and_drop_short_forms`."""
        keys: dict[str, Any] = {}
        for config in configs if isinstance(configs, list) else ():
            if isinstance(config, Mapping) and config:
                kind, given = next(iter(config.items()))
            else:
                kind, given = ("", None)
            if kind == "EbsVolumeConfig" and isinstance(given, Mapping):
                keys |= _ebs_volume_keys(given)
            elif kind in _BY_ENTRY and isinstance(given, Mapping):
                form = _BY_ENTRY[kind]
                path = str(given.get("MountPath") or form.config.path)
                values = tuple(str(given.get(key, "")) for key in form.config.keys)
                self._mounts.setdefault((kind, path, values), []).append(group)
            else:
                self.notes.append(f"group `{group}`: InstanceStorageConfigs.{kind or '?'}: there is no key for it")
        return keys

    def build_mounts_and_drop_short_forms(self, configuration_values: dict[str, Any]) -> list[dict[str, Any]]:
        """Make one mount for each file system and path, with the groups that have it where those are not
        all.

        The short forms of AWS's file are removed from `configuration_values` where they name the same
        file system.
        """
        mounts = []
        names: set[str] = set()
        for (entry, path, given), groups in self._mounts.items():
            form = _BY_ENTRY[entry]
            name = base = form.config.name
            number = 1
            while name in names:
                number += 1
                name = f"{base}-{number}"
            names.add(name)
            mount: dict[str, Any] = {"kind": form.kind, "name": name, "path": path}
            mount.update(zip(form.config.keys.values(), given))
            if sorted(groups) != sorted(self._all):
                mount["groups"] = groups
            mounts.append(mount)
            if form.short and configuration_values.get(form.short[0]) == given[0]:
                for key in form.short:
                    configuration_values.pop(key, None)
        return mounts


def _ebs_volume_keys(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("RootVolume"):
        return {"root_kms_key": given.get("VolumeKmsKeyId")}
    keys = {"ebs_gib": given.get("VolumeSizeInGB"), "ebs_kms_key": given.get("VolumeKmsKeyId")}
    return {key: value for key, value in keys.items() if value is not None}
