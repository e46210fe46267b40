"""The one list of the kinds of mounts.

A package's `__init__` imports nothing here, so the list is a module of its own. Each layer that knows more of a kind
has a file of the kind's name; `collect_kind_objects` collects them.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Mapping, Type, TypeVar

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.untrusted.dataclass_json import dataclass_from_json, dataclass_to_json

KINDS: Dict[str, Type[Any]] = {
    EfsMount.kind: EfsMount,
    S3FilesMount.kind: S3FilesMount,
    LustreMount.kind: LustreMount,
    OpenZfsMount.kind: OpenZfsMount,
    S3Mount.kind: S3Mount,
    NvmeMount.kind: NvmeMount,
}

T = TypeVar("T")


def collect_kind_objects(package: str, expected_type: Type[T]) -> Dict[str, T]:
    """Kind -> `KIND` of the module in `package` that has the name of the kind's own file here.

    Raises ImportError for a kind without such a module and TypeError for one that is not an `expected_type`: both where
    a layer is imported, so that no kind can be forgotten in one.
    """
    kind_objects = {}
    for kind, mount in KINDS.items():
        name = f"{package}.{mount.__module__.rpartition('.')[2]}"
        __import__(name)
        kind_object = getattr(sys.modules[name], "KIND", None)
        if not isinstance(kind_object, expected_type):
            raise TypeError(f"{name}.KIND is a {type(kind_object).__name__}, expected {expected_type.__name__}")
        kind_objects[kind] = kind_object
    return kind_objects


def mount_to_dict(mount: Mount) -> Dict[str, Any]:
    """JSON form of a mount: its fields and `kind`."""
    return {"kind": mount.kind, **dataclass_to_json(mount)}


def mount_from_dict(raw: Mapping[str, Any]) -> Mount:
    """Inverse of `mount_to_dict`. Raises KeyError for an unknown kind, ValueError for a field that is
    unknown, missing or of another type."""
    data = dict(raw)
    mount: Mount = dataclass_from_json(KINDS[data.pop("kind")], data, any_number=True)
    return mount
