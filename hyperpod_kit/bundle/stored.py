"""What a bucket holds of a bundle, file by file."""

from __future__ import annotations

import hashlib
from typing import Mapping, Optional

from hyperpod_kit.aws.parallel import in_order
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.bundle import manifest
from hyperpod_kit.bundle.compare import BundleDifference, between
from hyperpod_kit.bundle.render import Bundle
from hyperpod_kit.bundle.upload import THREADS


def stored(bundle: Bundle, bucket: Bucket) -> Optional[BundleDifference]:
    """What would have to change under the bundle's prefix; None when there is nothing at all. Every byte counts.

    Raises AwsError, Unreachable.
    """
    places = list(bucket.sizes(bundle.prefix))
    if not places:
        return None
    digests = in_order(lambda place: bucket.sha256(bundle.prefix + place) or "", places, THREADS)
    found = dict(zip(places, digests))
    return between(found, {place: hashlib.sha256(data).hexdigest() for place, data in bundle.files.items()})


def listing(bucket: Bucket, prefix: str) -> Optional[Mapping[str, str]]:
    """Place -> digest of the bundle under `prefix`, as its own SHA256SUMS says; None when there is none to read.

    Raises AwsError, Unreachable.
    """
    text = bucket.get(prefix + manifest.SUMS)
    try:
        return None if text is None else manifest.digests(text)
    except ValueError:
        return None
