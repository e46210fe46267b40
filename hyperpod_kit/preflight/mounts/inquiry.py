"""What the preflight knows of a kind of mount."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.preflight.client import QueryClient
from hyperpod_kit.preflight.facts import AccountFacts, FileSystem, FsxFileSystem, Queried
from hyperpod_kit.preflight.mounts.shared_file_systems import FileSystemQuery
from hyperpod_kit.preflight.permission import Account, Carried, Permission
from hyperpod_kit.preflight.placement import NodeRole


@dataclass(frozen=True)
class SharedService:
    """A service of file systems with an id and with mount targets, such as EFS.

    name: for a person; word: what the aws command calls it; listing: the command that lists file systems.
    """

    name: str
    word: str
    listing: str
    fetch: Callable[[QueryClient, FileSystemQuery], Queried[Optional[FileSystem]]]


@dataclass(frozen=True)
class FsxType:
    """A type of FSx file system.

    name: as FSx writes it; ports: of the protocol; both_ways: its servers connect to the nodes too; part: the key that
    says what is mounted of it; volumes: whether a mount names a volume that FSx has to be asked about; differs: what
    the mount says otherwise than the file system, beside the DNS name, with the place of `part`.
    """

    name: str
    ports: tuple[int, ...]
    both_ways: bool
    part: str
    volumes: Callable[[Any], bool]
    differs: Callable[[Any, str, FsxFileSystem], Iterator[Finding]]


class BucketOf(NamedTuple):
    """The part of a bucket that a mount shows. `path`: where its name is written."""

    bucket: str
    prefix: str
    path: str


@dataclass(frozen=True)
class MountInquiry:
    """What AWS is asked about the mounts of one kind. No field has a default: a kind that asks nothing says `None`.

    permissions: what the role must be allowed for the mounts that its nodes have; shared, fsx: the service behind the
    kind; bucket: what a mount shows of a bucket, None for one that is not AWS's; checks: of this kind alone.
    """

    permissions: Callable[[Carried, Account, NodeRole], Iterable[Permission]]
    shared: Optional[SharedService]
    fsx: Optional[FsxType]
    bucket: Optional[Callable[[Any, str], Optional[BucketOf]]]
    checks: tuple[Callable[[Settings, AccountFacts], Iterable[Finding]], ...]


def no_permissions(carried: Carried, account: Account, role: NodeRole) -> Iterable[Permission]:
    """Require no permission: mounting does without."""
    return ()


NOTHING = MountInquiry(permissions=no_permissions, shared=None, fsx=None, bucket=None, checks=())
"""AWS knows nothing of these mounts."""
