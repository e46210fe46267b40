"""Bundle -> S3, under a prefix that is named by its contents.

1. ask what is there; 2. put what is missing or different, in parallel, each with its checksum; 3. put SHA256SUMS and
bundle.json; 4. ask every object for its checksum again. A node that starts in between finds either no SHA256SUMS or a
whole bundle.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Sequence

from hyperpod_kit.aws.parallel import in_order
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import manifest
from hyperpod_kit.bundle.render import LEGACY_FILE, Bundle
from hyperpod_kit.errors import BundleError, BundleIntegrityError

THREADS = 16
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


def upload(bundle: Bundle, bucket: Bucket, progress: Progress = lambda what, count: None) -> Uploaded:
    """Make the prefix hold exactly this bundle. Raises BundleError, BundleIntegrityError, AwsError, Unreachable.

    What a run that was ended has sent stays, and is not sent again by the next.
    """
    there = bucket.sizes(bundle.prefix)
    _no_strangers(bundle, there)
    candidates = [place for place, data in bundle.files.items() if there.get(place) == len(data)]
    same = set(_matching(bundle, bucket, candidates))
    progress("same", len(same))
    missing = [place for place in bundle.files if place not in same]
    for batch in ([place for place in missing if place not in LAST], [place for place in missing if place in LAST]):
        for _ in in_order(lambda place: bucket.put(bundle.prefix + place, bundle.files[place]), batch, THREADS):
            progress("uploaded", 1)
    good = set()
    for place in _matching(bundle, bucket, missing):
        good.add(place)
        progress("verified", 1)
    for place in missing:
        if place not in good:
            raise BundleIntegrityError(f"{bundle.source_s3_uri}{place}", _sha256(bundle.files[place]), "something else")
    return Uploaded(
        bundle.bundle_id, bundle.source_s3_uri, len(missing), len(same), sum(len(bundle.files[p]) for p in missing)
    )


def require_uploaded(bundle: Bundle, bucket: Bucket) -> None:
    """Raise BundleError unless the prefix holds this bundle, byte for byte and with nothing beside it.

    Another file of the same size is somebody's who may write to the bucket, and who would be root of nodes.
    """
    there = bucket.sizes(bundle.prefix)
    _no_strangers(bundle, there)
    missing = [place for place, data in bundle.files.items() if there.get(place) != len(data)]
    if not missing:
        same = set(_matching(bundle, bucket, list(bundle.files)))
        changed = [place for place in bundle.files if place not in same]
        if changed:
            raise BundleError(
                f"{bundle.source_s3_uri} holds other bytes than the configuration renders in {len(changed)} of "
                f"{len(bundle.files)} files, first {changed[0]}: somebody else writes there",
                hint="hyperpod-kit diff; find out who wrote them, then: hyperpod-kit upload",
            )
    if missing:
        what = (
            "nothing is uploaded"
            if not there
            else f"{len(missing)} of {len(bundle.files)} files are missing, first {missing[0]}"
        )
        raise BundleError(
            f"bundle {bundle.bundle_id} is not at {bundle.source_s3_uri}: {what}", hint="hyperpod-kit upload"
        )


def _matching(bundle: Bundle, bucket: Bucket, places: Sequence[str]) -> Iterator[str]:
    """Those of `places` whose object has the right SHA-256."""
    found = in_order(lambda place: bucket.sha256(bundle.prefix + place), places, THREADS)
    for place, digest in zip(places, found):
        if digest == _sha256(bundle.files[place]):
            yield place


def _no_strangers(bundle: Bundle, there: Mapping[str, int]) -> None:
    strangers = sorted(set(there) - set(bundle.files))
    if LEGACY_FILE in strangers:
        raise BundleError(
            f"{bundle.source_s3_uri}{LEGACY_FILE} must not be there: HyperPod refuses a cluster whose prefix holds it "
            "while the request carries SlurmConfig",
            hint=f"aws s3 rm {bundle.source_s3_uri}{LEGACY_FILE}",
        )
    if strangers:
        raise BundleError(
            f"{bundle.source_s3_uri} holds {len(strangers)} file(s) that are not of this bundle, first {strangers[0]}",
            hint=f"aws s3 rm --recursive {bundle.source_s3_uri}, then: hyperpod-kit upload",
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
