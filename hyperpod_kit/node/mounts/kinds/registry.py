"""The kinds of mounts that a node can make.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict

from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.lustre import LustreMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.mounts.nvme import NvmeMount
from hyperpod_kit.model.mounts.openzfs import OpenZfsMount
from hyperpod_kit.model.mounts.s3files import S3FilesMount
from hyperpod_kit.node.mounts.kinds.efs import EfsKind
from hyperpod_kit.node.mounts.kinds.kind import Kind
from hyperpod_kit.node.mounts.kinds.lustre import LustreKind
from hyperpod_kit.node.mounts.kinds.mountpoint_s3 import MountpointS3Kind
from hyperpod_kit.node.mounts.kinds.nvme import NvmeKind
from hyperpod_kit.node.mounts.kinds.openzfs import OpenZfsKind
from hyperpod_kit.node.mounts.kinds.s3files import S3FilesKind

KINDS: Dict[str, Kind] = {
    EfsMount.kind: EfsKind(),
    S3FilesMount.kind: S3FilesKind(),
    LustreMount.kind: LustreKind(),
    OpenZfsMount.kind: OpenZfsKind(),
    S3Mount.kind: MountpointS3Kind(),
    NvmeMount.kind: NvmeKind(),
}


def kind_of(mount: Mount) -> Kind:
    return KINDS[mount.kind]
