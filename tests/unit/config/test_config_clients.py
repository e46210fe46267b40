"""Hostile values in the packages of mount clients are refused where they are written, before anything is rendered."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.settings.findings import select_errors
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.clients import Package

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
AT = "hyperpod_kit.clients[0]"
GOOD = {
    "name": "mount-s3",
    "client": "mount-s3",
    "version": "1.22.0",
    "arch": "x86_64",
    "sha256": "a" * 64,
    "url": "https://packages.example.com/1.22.0/mount-s3.deb",
}
HOSTILE = (
    "'; rm -rf /",
    "$(touch x)",
    "`id`",
    "a\nb",
    "a\0b",
    "é",
    "a b",
    "x" * 1000 + "/",
    "../../etc/passwd",
    "-oX=y",
    "/etc/shadow",
    '"',
    "\\",
    "%41",
    "",
    " ",
    "latest",
)


def found(entries: list[dict[str, Any]]) -> set[str]:
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["clients"] = copy.deepcopy(entries)
    settings, findings = decode_settings(values)
    return {finding.path for finding in select_errors([*findings, *validate(settings)])}


def test_the_good_one_is_good() -> None:
    assert found([GOOD]) == set()


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_hostile_value_is_refused_at_its_place(key: str, value: str) -> None:
    if (key, value) in (("url", ""), ("name", "latest")):
        # Neither a file nor a url; a package that may be called so, but is not mount-s3 itself.
        assert found([{**GOOD, key: value}]) == {AT}
        return
    paths = found([{**GOOD, key: value}])
    assert f"{AT}.{key}" in paths, paths


@pytest.mark.parametrize("value", [None, 7, True, ["a"], {"a": 1}])
@pytest.mark.parametrize("key", ["name", "version", "arch", "sha256"])
def test_another_type_is_refused_at_its_place(key: str, value: Any) -> None:
    assert any(path.startswith(f"{AT}.{key}") for path in found([{**GOOD, key: value}]))


def test_one_package_for_two_clients_is_one_file() -> None:
    nfs = {"name": "nfs-common", "version": "1:2.6.1", "arch": "x86_64", "sha256": "b" * 64, "file": "nfs-common.deb"}
    efs = {**GOOD, "name": "amazon-efs-utils", "client": "efs-utils", "version": "3.1.1"}
    both = [nfs, {**nfs, "client": "efs-utils"}, efs]
    assert found(both) == set()
    both[1] = {**both[1], "sha256": "c" * 64}
    assert found(both) == {"hyperpod_kit.clients[1]"}


def test_places_are_plain_and_apart() -> None:
    packages = [
        Package("nfs", "nfs-common", version, arch, "b" * 64)
        for version in ("1:2.6.1-1ubuntu1.2", "2.6.2-4+deb12u1~x")
        for arch in ("x86_64", "arm64", "all")
    ]
    places = [package.bundle_path for package in packages]
    assert len(set(places)) == len(places)
    assert places[0] == "packages/x86_64/nfs-common_2.6.1-1ubuntu1.2_amd64.deb"
