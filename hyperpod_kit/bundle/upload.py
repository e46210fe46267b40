"""Bundle -> S3, under a prefix that is named by its contents.

1. ask what is there; 2. put what is missing or different, in parallel, each with its checksum; 3. put SHA256SUMS and
bundle.json; 4. compare the checksum of every object that was sent, which S3 answers with (an endpoint that does not is
asked for it). A node that starts in between finds either no SHA256SUMS or a whole bundle.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Callable, Sequence

from hyperpod_kit.aws.parallel import map_in_order
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import manifest
from hyperpod_kit.bundle.render import LEGACY_FILE, Bundle
from hyperpod_kit.bundle.stored import THREADS, compare_with_stored, list_paths_stored_identically
from hyperpod_kit.errors import BundleError, BundleIntegrityError

LAST = (manifest.SUMS, manifest.DESCRIPTION)

Progress = Callable[[str, int], None]
"""Called with (what happened, number of files): `same` as what is there, `uploaded`, `verified` after the upload."""


@dataclass(frozen=True)
class Uploaded:
    """What an upload did: `sent` and `present` are numbers of files, `sent_bytes` the size of those sent."""

    bundle_id: str
    uri: str
    sent: int
    present: int
    sent_bytes: int


def list_paths_to_upload(bundle: Bundle, bucket: Bucket) -> list[str]:
    """Return the paths whose objects are missing or different under the bundle's prefix.

    Raises BundleError when something lies there that is not of the bundle, AwsError, Unreachable.
    """
    difference = compare_with_stored(bundle, bucket)
    if difference is None:
        return list(bundle.files)
    _require_no_foreign_objects(bundle, difference.removed)
    outdated = {*difference.added, *difference.changed}
    return [path for path in bundle.files if path in outdated]


def upload_bundle(bundle: Bundle, bucket: Bucket, progress: Progress = lambda what, count: None) -> Uploaded:
    """Make the prefix hold exactly this bundle. Raises BundleError, BundleIntegrityError, AwsError, Unreachable.

    What a run that was ended has sent stays, and is not sent again by the next.
    """
    outdated = list_paths_to_upload(bundle, bucket)
    present = len(bundle.files) - len(outdated)
    progress("same", present)
    expected = {path: hashlib.sha256(bundle.files[path]).hexdigest() for path in outdated}
    verified: set[str] = set()
    for batch in ([path for path in outdated if path not in LAST], [path for path in outdated if path in LAST]):
        stored = map_in_order(lambda path: bucket.put(bundle.prefix + path, bundle.files[path]), batch, THREADS)
        for path, stored_digest in zip(batch, stored):
            progress("uploaded", 1)
            if stored_digest == expected[path]:
                verified.add(path)
                progress("verified", 1)
    unanswered = [path for path in outdated if path not in verified]
    identical = list_paths_stored_identically(bundle, bucket, unanswered)
    progress("verified", len(identical))
    for path in unanswered:
        if path not in identical:
            raise BundleIntegrityError(f"{bundle.source_s3_uri}{path}", expected[path], "something else")
    sent_bytes = sum(len(bundle.files[path]) for path in outdated)
    return Uploaded(bundle.bundle_id, bundle.source_s3_uri, len(outdated), present, sent_bytes)


def require_uploaded(bundle: Bundle, bucket: Bucket) -> None:
    """Raise BundleError unless the prefix holds this bundle, byte for byte and with nothing beside it.

    Another file of the same size is somebody's who may write to the bucket, and who would be root of nodes.
    """
    difference = compare_with_stored(bundle, bucket)
    count = len(bundle.files)
    if difference is None:
        raise _not_uploaded_error(bundle, "nothing is uploaded")
    _require_no_foreign_objects(bundle, difference.removed)
    if difference.added:
        missing = difference.added
        raise _not_uploaded_error(bundle, f"{len(missing)} of {count} files are missing, first {missing[0]}")
    if difference.changed:
        changed = difference.changed
        raise BundleError(
            f"{bundle.source_s3_uri} differs from what the configuration renders in {len(changed)} of {count} "
            f"files, first {changed[0]}: somebody else writes to this prefix",
            hint="hyperpod-kit diff; find out who wrote them, then: hyperpod-kit upload",
        )


def _not_uploaded_error(bundle: Bundle, reason: str) -> BundleError:
    return BundleError(
        f"bundle {bundle.bundle_id} is not at {bundle.source_s3_uri}: {reason}", hint="hyperpod-kit upload"
    )


def _require_no_foreign_objects(bundle: Bundle, foreign: Sequence[str]) -> None:
    """Raise BundleError for objects under the prefix that are not of the bundle."""
    if LEGACY_FILE in foreign:
        raise BundleError(
            f"{bundle.source_s3_uri}{LEGACY_FILE} must not be there: HyperPod refuses a cluster whose prefix holds it "
            "while the request carries SlurmConfig",
            hint=f"aws s3 rm {bundle.source_s3_uri}{LEGACY_FILE}",
        )
    if foreign:
        raise BundleError(
            f"{bundle.source_s3_uri} holds {len(foreign)} file(s) that are not part of this bundle, first {foreign[0]}",
            hint=f"aws s3 rm --recursive {bundle.source_s3_uri}, then: hyperpod-kit upload",
        )
