"""What a bucket holds of a bundle, object by object, by the digests that S3 keeps: nothing is read back.

S3 computes the SHA-256 of each object when it arrives, refuses one that has another than was sent with it, and answers
with it, also to HeadObject. Only an object without one (copied by another program, or sent in parts) is read.
"""

from __future__ import annotations

import hashlib
from typing import Mapping, Optional, Sequence

from hyperpod_kit.aws.parallel import map_in_order
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import archive, manifest
from hyperpod_kit.bundle.compare import BundleDifference
from hyperpod_kit.bundle.render import Bundle

THREADS = 16


def compare_with_stored(bundle: Bundle, bucket: Bucket) -> Optional[BundleDifference]:
    """Compare the stored objects with this bundle by their digests; None when there are none.

    Raises AwsError, Unreachable.
    """
    sizes = bucket.sizes_by_relative_key(bundle.prefix)
    if not sizes:
        return None
    candidates = [path for path in bundle.files if path in sizes and _size_may_match(bundle, path, sizes[path])]
    matching = set(list_paths_stored_identically(bundle, bucket, candidates))
    return BundleDifference(
        added=tuple(path for path in bundle.files if path not in sizes),
        changed=tuple(path for path in bundle.files if path in sizes and path not in matching),
        removed=tuple(sorted(set(sizes) - set(bundle.files))),
    )


def list_paths_stored_identically(bundle: Bundle, bucket: Bucket, paths: Sequence[str]) -> list[str]:
    """Return those of `paths` whose stored object is the bundle's. Raises AwsError, Unreachable."""
    verdicts = map_in_order(lambda path: _object_matches(bundle, bucket, path), paths, THREADS)
    return [path for path, same in zip(paths, verdicts) if same]


def read_stored_digests(bucket: Bucket, prefix: str) -> Optional[Mapping[str, str]]:
    """Place -> digest of the bundle under `prefix`, as its own SHA256SUMS says; None when there is none to read.

    Raises AwsError, Unreachable.
    """
    text = bucket.get(prefix + manifest.SUMS)
    try:
        if text is None:
            return None
        return manifest.parse_sha256sums(text)
    except ValueError:
        return None


def read_stored_format(bucket: Bucket, prefix: str) -> str:
    """The format of the bundle under `prefix`, as its bundle.json says; "" when there is none to read.

    Raises AwsError, Unreachable.
    """
    text = bucket.get(prefix + manifest.DESCRIPTION)
    if text is None:
        return ""
    return manifest.parse_bundle_format(text)


def _size_may_match(bundle: Bundle, path: str, size: int) -> bool:
    """Return whether an object of this size can be the bundle's; the archive's size differs with another
    zlib."""
    return path == archive.ARCHIVE or size == len(bundle.files[path])


def _object_matches(bundle: Bundle, bucket: Bucket, path: str) -> bool:
    key, data = bundle.prefix + path, bundle.files[path]
    if bucket.sha256(key) == hashlib.sha256(data).hexdigest():
        return True
    if path != archive.ARCHIVE:
        return False
    # The same archive from a machine with another zlib has other bytes: what counts is the tar inside.
    other = bucket.get(key)
    return other is not None and archive.have_same_contents(other, data)
