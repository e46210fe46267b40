"""The day of a release that is not out yet: its packages change daily, so an image of it is of one day."""

from __future__ import annotations

import re
import tempfile
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Sequence

from hyperpod_kit.errors import RehearsalError, RunError
from hyperpod_kit.run import Runner

CHANGING = ("forky",)
"""Debian's testing."""

HELPER = "/usr/lib/apt/apt-helper"
"""apt's own way to fetch a file, with the proxies and checks of its configuration."""
DEADLINE = 60.0


def fetch_archive_timestamp_if_changing(codename: str, sources: Sequence[str], runner: Runner) -> str:
    """When the archive of a changing release was made, `20261030T080801`; "" for one that does not change.

    Raises RehearsalError when the mirror does not answer, or with something else than a release file.
    """
    if codename not in CHANGING:
        return ""
    _, uri, suite, *_ = re.sub(r"\[[^]]*\] ", "", sources[0]).split()
    address = f"{uri.rstrip('/')}/dists/{suite}/InRelease"
    with tempfile.TemporaryDirectory(prefix="hpk-release-") as directory:
        file = Path(directory) / "InRelease"
        try:
            runner.run([HELPER, "download-file", address, str(file)], timeout=DEADLINE)
            text = file.read_text(errors="replace")
        except (RunError, OSError) as err:
            if isinstance(err, RunError):
                output = err.stderr.strip().splitlines()[-1:]
            else:
                output = [str(err)]
            raise RehearsalError(
                f"{codename} changes daily, and {address} does not say of which day it is: {' '.join(output) or err}",
                hint=f"apt-get update; or try again: mirrors of {codename} fail for minutes while they are renewed",
            ) from err
    match = re.search(r"^Date: (.+)$", text, re.M)
    try:
        archive_date = None
        if match:
            archive_date = parsedate_to_datetime(match.group(1))
    except ValueError:
        archive_date = None
    if archive_date is None:
        raise RehearsalError(
            f"{address} is no release file: it has no date", hint=f"{HELPER} download-file {address} x"
        )
    if archive_date.tzinfo is None:
        archive_date = archive_date.replace(tzinfo=timezone.utc)
    return f"{archive_date.astimezone(timezone.utc):%Y%m%dT%H%M%S}"


def format_archive_date(timestamp: str) -> str:
    """Return an archive timestamp (`20261030T080801`) as YYYY-MM-DD."""
    return f"{datetime.strptime(timestamp, '%Y%m%dT%H%M%S'):%Y-%m-%d}"
