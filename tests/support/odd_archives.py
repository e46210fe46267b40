"""Archives that no kit makes, for what opens a bundle's archive: name -> the archive, and how it must be refused."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from typing import Callable, Mapping, NamedTuple

from hyperpod_kit.bundle import archive, manifest
from hyperpod_kit.bundle.render import Bundle

VICTIM = "lib/hyperpod_kit/version.py"


class OddArchive(NamedTuple):
    """`members`: the tar's from those of the bundle; `node`, `admin`: words of the refusals, {victim} in its place."""

    members: Callable[[list[tarfile.TarInfo]], list[tarfile.TarInfo]]
    node: str
    admin: str


def _with(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[..., list[tarfile.TarInfo]]:
    """One member more."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return lambda members: [*members, member]


def _instead(kind: bytes, target: str = "") -> Callable[..., list[tarfile.TarInfo]]:
    """A listed member is something else."""
    member = tarfile.TarInfo(VICTIM)
    member.type, member.linkname = kind, target
    return lambda members: [*(one for one in members if one.name != VICTIM), member]


NOT_PLAIN = "is not a plain file"
OUTSIDE = "not a path below lib/"
ODD: Mapping[str, OddArchive] = {
    "absolute": OddArchive(_with("/etc/hpk-evil"), "/etc/hpk-evil in lib.tar.gz is not listed", OUTSIDE),
    "climbing": OddArchive(_with("lib/../../evil"), "lib/../../evil in lib.tar.gz is not listed", OUTSIDE),
    "elsewhere": OddArchive(_with("on_create.sh"), "on_create.sh in lib.tar.gz is not listed", OUTSIDE),
    "unlisted": OddArchive(_with("lib/json.py"), "lib/json.py in lib.tar.gz is not listed", ""),
    "directory": OddArchive(_with("lib/new", tarfile.DIRTYPE), "lib/new/ in lib.tar.gz is not listed", NOT_PLAIN),
    "unlisted link": OddArchive(
        _with("lib/l", tarfile.SYMTYPE, "/etc/passwd"), "lib/l in lib.tar.gz is not listed", NOT_PLAIN
    ),
    "newline": OddArchive(_with("lib/a\nb"), "lib/a/nb in lib.tar.gz is not listed", OUTSIDE),
    "twice": OddArchive(_with(VICTIM), f"{VICTIM} is twice in lib.tar.gz", "twice"),
    "missing": OddArchive(
        lambda members: [one for one in members if one.name != VICTIM], f"{VICTIM} is missing from lib.tar.gz", ""
    ),
    "symbolic link": OddArchive(_instead(tarfile.SYMTYPE, "/etc/passwd"), f"{NOT_PLAIN}: l", NOT_PLAIN),
    "hard link": OddArchive(_instead(tarfile.LNKTYPE, "lib/__main__.py"), f"{NOT_PLAIN}: h", NOT_PLAIN),
    "character device": OddArchive(_instead(tarfile.CHRTYPE), f"{NOT_PLAIN}: c", NOT_PLAIN),
    "block device": OddArchive(_instead(tarfile.BLKTYPE), f"{NOT_PLAIN}: b", NOT_PLAIN),
    "pipe": OddArchive(_instead(tarfile.FIFOTYPE), f"{NOT_PLAIN}: p", NOT_PLAIN),
}


def odd_tar(bundle: Bundle, name: str) -> bytes:
    """The uncompressed archive of that name for a bundle."""
    members = []
    for place in sorted(bundle.library):
        member = tarfile.TarInfo(place)
        member.size = len(bundle.library[place])
        members.append(member)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member in ODD[name].members(members):
            tar.addfile(member, io.BytesIO(bundle.library.get(member.name, b"")[: member.size]))
    return out.getvalue()


def with_tar(bundle: Bundle, tar: bytes) -> Bundle:
    """The bundle with another archive, to which all digests and the id agree."""
    installed = {**bundle.installed_files, archive.TAR_SUM: archive.tar_digest_text(tar)}
    listing = manifest.make_sha256sums(installed)
    identity = manifest.compute_bundle_id(listing)
    changed = {
        archive.ARCHIVE: archive.gzip_tar(tar),
        archive.TAR_SUM: archive.tar_digest_text(tar),
        manifest.SUMS: listing,
        manifest.DESCRIPTION: manifest.make_bundle_json("0", identity),
    }
    return replace(bundle, bundle_id=identity, files={**bundle.files, **changed})
