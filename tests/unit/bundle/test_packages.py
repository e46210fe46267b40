"""Packages of mount clients in the bundle: checked against what the configuration says, byte for byte inside."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hyperpod_kit.bundle.packages import make_client_entry_for_deb_file, parse_deb_fields_empty_if_unreadable
from hyperpod_kit.bundle.render import render
from hyperpod_kit.cli.bundle.package_command import describe_package
from hyperpod_kit.config.load import check, load
from hyperpod_kit.errors import Absent, BundleError
from hyperpod_kit.model.node_config import NodeConfig
from tests.support.capabilities import require

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
PLACE = "packages/arm64/mount-s3_1.22.0-1_arm64.deb"


def deb(
    directory: Path, name: str = "mount-s3", version: str = "1:1.22.0-1", arch: str = "arm64", compression: str = "gzip"
) -> Path:
    require("dpkg-deb")
    tree = directory / f"tree-{name}-{compression}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\n"
        "Maintainer: T <t@example.com>\nDescription: for a test\n"
    )
    # What looks like a script with Windows line ends is data here.
    (tree / "blob").write_bytes(b"#!/bin/sh\r\n" + bytes(range(256)))
    target = directory / f"{name}.deb"
    subprocess.run(
        ["dpkg-deb", f"-Z{compression}", "--root-owner-group", "-b", str(tree), str(target)],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=30,
    )
    return target


def configuration(directory: Path, package: Path, **changes: Any) -> Path:
    """The example with one package of mount-s3 in it."""
    values = json.loads(EXAMPLE.read_text())
    listed = {
        "name": "mount-s3",
        "version": "1:1.22.0-1",
        "arch": "arm64",
        "file": package.name,
        "sha256": hashlib.sha256(package.read_bytes()).hexdigest(),
        **changes,
    }
    values["hyperpod_kit"]["clients"] = [listed]
    path = directory / "cluster.json"
    path.write_text(json.dumps(values, indent=2))
    return path


def test_a_package_travels_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = deb(tmp_path)
    path = configuration(tmp_path, file)
    monkeypatch.chdir("/")  # paths start from the configuration, not from where the command is run
    bundle = render(load(path))
    assert bundle.files[PLACE] == file.read_bytes()
    assert f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {PLACE}\n" in bundle.files["SHA256SUMS"].decode()
    config = NodeConfig.from_json(bundle.files["node_config.json"].decode())
    assert [package.bundle_path for package in config.packages] == [PLACE]
    assert str(tmp_path) not in bundle.files["node_config.json"].decode()
    assert (
        b"cluster.json" not in bundle.files["node_config.json"]
        and file.name.encode() not in bundle.files["node_config.json"]
    )


def test_the_same_package_from_elsewhere_is_the_same_bundle(tmp_path: Path) -> None:
    file = deb(tmp_path)
    first = render(load(configuration(tmp_path, file)))
    other = tmp_path / "elsewhere"
    other.mkdir()
    moved = Path(shutil.copy(file, other / "renamed.deb"))
    assert render(load(configuration(other, moved))).files == first.files


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "0" * 64}, r"mount-s3\.deb: expected sha256 0{64}, found [0-9a-f]{64}"),
        ({"version": "1.23.0"}, r"mount-s3\.deb: Version is 1:1\.22\.0-1, listed as 1\.23\.0"),
        ({"arch": "x86_64"}, r"mount-s3\.deb: Architecture is arm64, listed as amd64"),
        ({"name": "nfs-common"}, r"mount-s3\.deb: Package is mount-s3, listed as nfs-common"),
        ({"file": "nowhere.deb"}, r"nowhere\.deb: No such file or directory"),
        ({"file": "."}, "is a directory"),
    ],
)
def test_a_file_that_is_not_what_is_listed(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = configuration(tmp_path, deb(tmp_path), **changes)
    with pytest.raises(BundleError, match=said):
        render(load(path))


def test_a_page_that_says_access_denied_is_no_package(tmp_path: Path) -> None:
    file = tmp_path / "mount-s3.deb"
    file.write_text("<html>AccessDenied</html>")
    with pytest.raises(BundleError, match="is not a Debian package"):
        render(load(configuration(tmp_path, file)))


@pytest.mark.parametrize("compression", ["gzip", "xz", "none"])
def test_control_fields_are_read_without_dpkg(tmp_path: Path, compression: str) -> None:
    data = deb(tmp_path, compression=compression).read_bytes()
    fields = parse_deb_fields_empty_if_unreadable(data)
    assert fields is not None
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("mount-s3", "1:1.22.0-1", "arm64")
    for size in (0, 7, 8, 60, 90, len(data) // 2):
        assert parse_deb_fields_empty_if_unreadable(data[:size]) is None, size


def test_an_archive_that_python_cannot_read_is_left_to_the_node(tmp_path: Path) -> None:
    data = deb(tmp_path).read_bytes()
    assert parse_deb_fields_empty_if_unreadable(data.replace(b"control.tar.gz  ", b"control.tar.zst ")) == {}


def test_a_package_behind_a_url_is_not_in_the_bundle(tmp_path: Path) -> None:
    url = "https://packages.example.com/1.22.0/mount-s3.deb"
    file = deb(tmp_path)
    path = configuration(tmp_path, file)
    values = json.loads(path.read_text())
    del values["hyperpod_kit"]["clients"][0]["file"]
    values["hyperpod_kit"]["clients"][0]["url"] = url
    path.write_text(json.dumps(values))
    bundle = render(load(path))
    assert not [place for place in bundle.files if place.startswith("packages/")]
    assert NodeConfig.from_json(bundle.files["node_config.json"].decode()).packages[0].url == url


def test_the_entry_of_a_file(tmp_path: Path) -> None:
    runner = CliRunner()
    file, other = deb(tmp_path), deb(tmp_path, name="libfuse2", version="2.9.9-5", arch="all")
    done = runner.invoke(describe_package, [str(file), str(other), "--client", "mount-s3"])
    entries = json.loads(done.output)
    assert [list(entry) for entry in entries] == [
        ["name", "version", "arch", "file", "sha256"],
        ["name", "client", "version", "arch", "file", "sha256"],
    ]
    values = json.loads(EXAMPLE.read_text())
    values["hyperpod_kit"]["clients"] = entries
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(values))
    packages = [place for place in render(load(path)).files if place.startswith("packages/")]
    assert packages == ["packages/all/libfuse2_2.9.9-5_all.deb", PLACE]
    with pytest.raises(BundleError, match="armel"):
        make_client_entry_for_deb_file(deb(tmp_path, name="x", arch="armel"))
    with pytest.raises(BundleError, match="is not a Debian package"):
        make_client_entry_for_deb_file(path)
    with pytest.raises(Absent, match="No such file"):
        make_client_entry_for_deb_file(tmp_path / "nowhere.deb")
    unreadable = tmp_path / "zstd.deb"
    unreadable.write_bytes(file.read_bytes().replace(b"control.tar.gz  ", b"control.tar.zst "))
    with pytest.raises(BundleError, match="only dpkg-deb can read"):
        make_client_entry_for_deb_file(unreadable)


def test_findings_name_the_line(tmp_path: Path) -> None:
    path = configuration(tmp_path, deb(tmp_path), version="latest", sha="0" * 64)
    found = {finding.code: finding for finding in check(path).findings}
    assert set(found) == {"HPK-C001", "HPK-P002", "HPK-P012"}  # the example has no arm64
    assert found["HPK-C001"].hint == "Did you mean `sha256`?"
    assert path.read_text().splitlines()[found["HPK-P002"].line - 1].strip() == '"version": "latest",'
