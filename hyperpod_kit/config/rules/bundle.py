"""Where the bundle is uploaded."""

from __future__ import annotations

import re
from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.mounts.mountpoint_s3 import PREFIX
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings

AT = "hyperpod_kit.bundle"


def check_bundle_location(settings: Settings) -> Iterator[Finding]:
    """The bucket can be read by HyperPod's managed role, and keys under the prefix are plain."""
    bucket, prefix = settings.bundle.bucket, settings.bundle.prefix
    if fits_field_pattern_if_any(f"{AT}.bucket", bucket) and not bucket.startswith("sagemaker-"):
        yield Finding(
            "HPK-B002",
            f"{AT}.bucket",
            f"`{bucket}` does not start with sagemaker-",
            "HyperPod's managed role reads sagemaker-* buckets only: choose such a name",
        )
    if prefix and not prefix.endswith("/"):
        yield Finding("HPK-B003", f"{AT}.prefix", f"`{prefix}` does not end with /", f"Write `{prefix}/`")
    elif prefix and not re.fullmatch(PREFIX, prefix):
        yield Finding(
            "HPK-B004",
            f"{AT}.prefix",
            f"`{prefix}` has characters that a shell or a URL would change",
            "Use letters, digits and ._=- between slashes, no slash first",
        )
