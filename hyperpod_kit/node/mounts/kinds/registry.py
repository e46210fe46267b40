"""The kinds of mounts that a node can make.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from typing import Dict

from hyperpod_kit.model.mounts import EfsMount, LustreMount, Mount, NvmeMount, OpenZfsMount, S3FilesMount, S3Mount
from hyperpod_kit.node.mounts.kinds.efs import Efs
from hyperpod_kit.node.mounts.kinds.kind import Kind
from hyperpod_kit.node.mounts.kinds.lustre import Lustre
from hyperpod_kit.node.mounts.kinds.mountpoint_s3 import MountpointS3
from hyperpod_kit.node.mounts.kinds.nvme import Nvme
from hyperpod_kit.node.mounts.kinds.openzfs import OpenZfs
from hyperpod_kit.node.mounts.kinds.s3files import S3Files

KINDS: Dict[str, Kind] = {
    EfsMount.kind: Efs(),
    S3FilesMount.kind: S3Files(),
    LustreMount.kind: Lustre(),
    OpenZfsMount.kind: OpenZfs(),
    S3Mount.kind: MountpointS3(),
    NvmeMount.kind: Nvme(),
}


def kind_of(mount: Mount) -> Kind:
    return KINDS[mount.kind]
