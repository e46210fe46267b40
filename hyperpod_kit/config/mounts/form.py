"""What the configuration knows of a kind of mount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterable, Mapping, Optional

from hyperpod_kit.config.findings import Finding
from hyperpod_kit.config.settings import ProvisioningParameters, Settings
from hyperpod_kit.config.written import WrittenMount

ShortForm = Callable[[ProvisioningParameters], Optional[WrittenMount]]


@dataclass(frozen=True)
class StorageConfig:
    """A mount as an entry of InstanceStorageConfigs.

    keys: AWS's key -> ours, of all but the path; name, path: what a mount is called and where it lies when the entry
    does not say; short: the keys of AWS's file that stand for the same mount, the one that has the first of `keys`
    first.
    """

    keys: Mapping[str, str]
    name: str
    path: str
    short: tuple[str, ...]


@dataclass(frozen=True)
class MountForm:
    """How mounts of one kind are written. No field has a default, so that no kind leaves a question open.

    fields: what each of its own keys means, in a sentence; nicknames: what people write for the kind, for the hint;
    short_form: the mount that AWS's own keys at the top of the file stand for, None for a kind that has no such keys;
    storage_config: None for a kind that HyperPod does not mount by itself; rules: what must be so of these mounts.
    """

    fields: Mapping[str, str]
    nicknames: tuple[str, ...]
    short_form: Optional[ShortForm]
    storage_config: Optional[StorageConfig]
    rules: tuple[Callable[[Settings], Iterable[Finding]], ...]
