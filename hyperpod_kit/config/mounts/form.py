"""What the configuration knows of a kind of mount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Optional

from hyperpod_kit.config.settings.field import Field
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import ProvisioningParameters, Settings
from hyperpod_kit.model.mounts.base import Mount


@dataclass(frozen=True)
class ShortForm:
    """Keys at the top of AWS's file that stand for one mount. keys: key of the mount -> AWS's key, the one that the
    mount cannot do without first; mount: None where they are not there."""

    keys: Mapping[str, str]
    mount: Callable[[ProvisioningParameters], Optional[Mount]]

    @property
    def first_key(self) -> str:
        """Return the first key of the short form, which is the path that findings name for its mount."""
        return next(iter(self.keys.values()))


@dataclass(frozen=True)
class StorageConfig:
    """A mount as an entry of InstanceStorageConfigs.

    keys: AWS's key -> ours, of all but the path; name, path: what a mount is called and where it lies when the entry
    does not say.
    """

    keys: Mapping[str, str]
    name: str
    path: str


@dataclass(frozen=True)
class MountForm:
    """How mounts of one kind are written. No field has a default, so that no kind leaves a question open.

    fields: what its own keys mean, and what they must look like; nicknames: what people write for the kind, for the
    hint; short_form: None for a kind that AWS's own file has no keys for; storage_config: None for a kind that HyperPod
    does not mount by itself; rules: what else must be so of these mounts.
    """

    fields: Mapping[str, Field]
    nicknames: tuple[str, ...]
    short_form: Optional[ShortForm]
    storage_config: Optional[StorageConfig]
    rules: tuple[Callable[[Settings], Iterable[Finding]], ...]

    def configuration_path_of_key(self, at: str, key: str) -> str:
        """Return the path of `key` of a mount that is written at `at`."""
        if self.short_form is not None and at == self.short_form.first_key:
            return self.short_form.keys.get(key, at)
        return f"{at}.{key}"
