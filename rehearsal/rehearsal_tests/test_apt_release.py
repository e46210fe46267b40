"""Of which day a release is that is not out yet; the mirror's file is one of Debian's, cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.errors import RehearsalError, RunError
from hyperpod_kit.run import Completed
from hyperpod_rehearsal.machines.apt_release import fetch_archive_timestamp_if_changing, format_archive_date

SOURCES = ["deb [signed-by=/k.gpg] http://mirror.example/debian/ forky main", "deb http://mirror.example/x y main"]
IN_RELEASE = """\
-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA256

Origin: Debian
Suite: testing
Codename: forky
Date: Fri, 30 Oct 2026 08:08:01 UTC
Valid-Until: Fri, 06 Nov 2026 08:08:01 UTC
"""


class Mirror:
    """Stands for apt-helper, which writes what the mirror has to a file, or fails."""

    def __init__(self, text: str = "", error: str = "") -> None:
        self.addresses: list[str] = []
        self._text, self._error = text, error

    def run(self, argv, **options):
        self.addresses.append(argv[2])
        if self._error:
            raise RunError(argv, 100, stderr=self._error)
        Path(argv[3]).write_text(self._text)
        return Completed(tuple(argv), 0, "", "")


def test_the_day_is_that_of_the_release_file():
    mirror: Any = Mirror(IN_RELEASE)
    assert fetch_archive_timestamp_if_changing("forky", SOURCES, mirror) == "20261030T080801"
    assert mirror.addresses == ["http://mirror.example/debian/dists/forky/InRelease"]
    assert format_archive_date("20261030T080801") == "2026-10-30"


def test_a_release_that_is_out_has_no_day_and_nobody_is_asked():
    mirror: Any = Mirror(error="no")
    assert fetch_archive_timestamp_if_changing("trixie", SOURCES, mirror) == "" and not mirror.addresses


@pytest.mark.parametrize(
    "mirror, message",
    [
        (Mirror(error="E: Failed to fetch\nE: 503  Backend unavailable"), r"forky changes daily.*503"),
        (Mirror("<html>come back later</html>"), "no release file"),
        (Mirror("Date: yesterday\n"), "no release file"),
    ],
)
def test_a_mirror_that_fails_is_named(mirror, message):
    with pytest.raises(RehearsalError, match=message) as caught:
        fetch_archive_timestamp_if_changing("forky", SOURCES, mirror)
    assert "http://mirror.example/debian/dists/forky/InRelease" in caught.value.message
