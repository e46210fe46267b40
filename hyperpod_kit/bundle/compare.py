"""What one bundle has and another has not, by their lists of digests; a directory against what would be rendered."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional

from hyperpod_kit.bundle import archive
from hyperpod_kit.bundle.render import Bundle, bundle_file_mode_from_name
from hyperpod_kit.errors import BundleError


@dataclass(frozen=True)
class BundleDifference:
    """Places in a bundle, sorted, seen from the old one: what the new one adds, changes and removes."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def lines(self) -> Iterator[str]:
        """Yield one line a file: the word and the path."""
        for word, places in asdict(self).items():
            for path in places:
                yield f"{word:<8} {path}"


def compare_digests(old: Mapping[str, str], new: Mapping[str, str]) -> BundleDifference:
    """Compare two bundles, each as path -> digest, or anything else that differs for a different file."""
    return BundleDifference(
        tuple(sorted(set(new) - set(old))),
        tuple(sorted(path for path in set(old) & set(new) if old[path] != new[path])),
        tuple(sorted(set(old) - set(new))),
    )


def compare_with_directory(bundle: Bundle, directory: Path) -> BundleDifference:
    """Compare the bundle with a directory: bytes, mode bits, and kinds of files.

    Of lib.tar.gz the tar inside is compared, and where it can be read, each of its members as well.
    """
    rendered = {
        name: _mode_and_content_digest(name, bundle_file_mode_from_name(name), data)
        for name, data in bundle.files.items()
    }
    existing = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            existing[name] = "a link"
        elif path.is_file():
            existing[name] = _mode_and_content_digest(name, path.stat().st_mode & 0o777, path.read_bytes())
    members = _read_members_or_none(directory / archive.ARCHIVE)
    if members is not None:
        existing = {name: _digest(data) for name, data in members.items()} | existing
        rendered |= {name: _digest(data) for name, data in bundle.library.items()}
    return compare_digests(existing, rendered)


def _read_members_or_none(path: Path) -> Optional[dict[str, bytes]]:
    """The members of an archive, None when there is none to read."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return archive.read_members(path.read_bytes())
    except BundleError:
        return None


def _mode_and_content_digest(name: str, mode_bits: int, data: bytes) -> str:
    if name == archive.ARCHIVE:
        with suppress(BundleError):
            return f"{mode_bits:o} {_digest(archive.gunzip_tar(data))}"
    return f"{mode_bits:o} {_digest(data)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
