from __future__ import annotations

import pytest

from hyperpod_kit.errors import RehearsalError
from hyperpod_rehearsal.machines.apt_sources import (
    Distribution,
    apt_sources_for_release,
    detect_supported_distribution,
    read_host_sources,
)

DEB822 = """\
# comment
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://elsewhere.example
Suites: bookworm
Components: stable

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def root_with(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_deb822_entries_become_lines_and_third_parties_stay_out(tmp_path):
    root = root_with(tmp_path, {"apt/sources.list.d/debian.sources": DEB822})
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert read_host_sources("bookworm", root) == [
        f"deb {key} http://mirror.example/debian bookworm main",
        f"deb {key} http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/security bookworm-security main",
    ]


def test_one_line_entries_of_ubuntu(tmp_path):
    root = root_with(
        tmp_path,
        {
            "apt/sources.list": """\
deb http://archive.example/ubuntu jammy main universe # the archive
deb-src http://archive.example/ubuntu jammy main
deb http://archive.example/ubuntu jammy-backports main universe
deb [arch=amd64] http://archive.example/ubuntu jammy-updates main universe
deb [arch=amd64] https://vendor.example/apt jammy vendor
"""
        },
    )
    assert read_host_sources("jammy", root) == [
        "deb http://archive.example/ubuntu jammy main universe",
        "deb [arch=amd64] http://archive.example/ubuntu jammy-updates main universe",
    ]


def test_no_source_is_an_error_with_the_code_name(tmp_path):
    with pytest.raises(RehearsalError, match="bookworm"):
        read_host_sources("bookworm", tmp_path)


@pytest.mark.parametrize(
    "release, expected",
    [
        ('ID=debian\nVERSION_ID="12"\n', Distribution("debian", "12", "bookworm")),
        ('NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n', Distribution("ubuntu", "24.04", "noble")),
    ],
)
def test_supported_distributions(tmp_path, release, expected):
    assert detect_supported_distribution(root_with(tmp_path, {"os-release": release})) == expected


@pytest.mark.parametrize("release", ["ID=fedora\nVERSION_ID=41\n", "ID=debian\n", ""])
def test_other_distributions_are_refused_by_name(tmp_path, release):
    with pytest.raises(RehearsalError, match="debian 12"):
        detect_supported_distribution(root_with(tmp_path, {"os-release": release}))


BOOKWORM = Distribution("debian", "12", "bookworm")


def test_another_release_comes_from_the_same_mirrors(tmp_path):
    root = root_with(
        tmp_path,
        {
            "apt/sources.list": """\
deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main non-free-firmware
deb http://mirror.example/debian bookworm-updates main
deb http://mirror.example/security bookworm-security main
"""
        },
    )
    assert apt_sources_for_release("bullseye", BOOKWORM, root) == [
        "deb [signed-by=/k.gpg] http://mirror.example/debian bullseye main",
        "deb http://mirror.example/debian bullseye-updates main",
    ]
    assert "non-free-firmware" in apt_sources_for_release("trixie", BOOKWORM, root)[0]
    assert apt_sources_for_release("forky", BOOKWORM, root)[1] == "deb http://mirror.example/debian forky-updates main"
    assert apt_sources_for_release("bookworm", BOOKWORM, root) == read_host_sources("bookworm", root)


def test_a_release_of_another_distribution_is_refused_with_those_that_work(tmp_path):
    with pytest.raises(RehearsalError, match=r"jammy.*bullseye, bookworm, trixie, forky"):
        apt_sources_for_release("jammy", BOOKWORM, tmp_path)
