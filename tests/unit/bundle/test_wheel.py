"""The wheel in a bundle: the bytes are the same from a checkout and from an installed wheel, whatever the commit."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Dict

import pytest

from hyperpod_kit import extras
from hyperpod_kit.bundle import render, sources
from hyperpod_kit.bundle.sources import Sources
from hyperpod_kit.bundle.wheel import build_wheel
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import BundleError
from hyperpod_kit.version import RELEASE

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / sources.EXAMPLE


def members(data: bytes) -> Dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def information(files: Dict[str, bytes], name: str) -> bytes:
    (place,) = [place for place in files if place.endswith(f".dist-info/{name}")]
    return files[place]


def installed(data: bytes, directory: Path) -> Sources:
    """The sources of a kit that was installed from this wheel, as pip lays it out and Python leaves it behind."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(directory)
    package = directory / "hyperpod_kit"
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "version.cpython-311.pyc").write_bytes(b"\r\n")
    return Sources(package / "_bundle", package)


def test_a_kit_from_a_wheel_makes_the_same_wheel(tmp_path: Path) -> None:
    (name, data) = build_wheel(sources.locate_sources())
    assert build_wheel(installed(data, tmp_path)) == (name, data)


def test_the_wheel_follows_its_contents_and_not_the_commit(tmp_path: Path) -> None:
    (name, data) = build_wheel(sources.locate_sources())
    origin = installed(data, tmp_path / "one")
    (origin.package / "errors.py").write_text("# another text\n")
    (other, _) = build_wheel(origin)
    assert other != name
    assert name.startswith(f"hyperpod_kit-{RELEASE}+c") and other.startswith(f"hyperpod_kit-{RELEASE}+c")


def test_the_bundle_has_the_wheel_among_its_sums() -> None:
    bundle = render.render(load(EXAMPLE))
    (name, data) = build_wheel(sources.locate_sources())
    assert bundle.library[f"lib/{name}"] == data
    assert f"{hashlib.sha256(data).hexdigest()}  lib/{name}\n" in bundle.files["SHA256SUMS"].decode()
    again = render.render(load(EXAMPLE), Sources(sources.locate_sources().root, sources.locate_sources().package))
    assert again.bundle_id == bundle.bundle_id


def test_the_record_proves_every_file() -> None:
    files = members(build_wheel(sources.locate_sources())[1])
    rows = {row[0]: (row[1], row[2]) for row in csv.reader(information(files, "RECORD").decode().splitlines())}
    assert rows.keys() == files.keys()
    for name, (digest, size) in rows.items():
        if name.endswith("/RECORD"):
            assert (digest, size) == ("", "")
            continue
        expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(files[name])))


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    files = members(build_wheel(sources.locate_sources())[1])
    assert {"hyperpod_kit/py.typed", "hyperpod_kit/checkpoint/__init__.pyi", "hyperpod_kit/_bundle/LICENSE"} <= set(
        files
    )
    assert "hyperpod_kit/_bundle/lifecycle_scripts/on_create.sh" in files
    assert information(files, f"licenses/{sources.LICENSE}") == (ROOT / "LICENSE").read_bytes()
    assert not [name for name in files if "__pycache__" in name or name.endswith((".pyc", ".o", ".so"))]


def requirements(metadata: Message) -> Dict[str, object]:
    return {name: metadata.get_all(name) for name in ("Requires-Python", "Requires-Dist", "Provides-Extra")}


@pytest.mark.needs("python-3.11")
def test_the_requirements_are_those_of_pyproject() -> None:
    import tomllib  # type: ignore[import-not-found]  # mypy checks for Python 3.10

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name: tuple(wanted) for name, wanted in project["optional-dependencies"].items()} == dict(extras.EXTRAS)
    assert tuple(project["dependencies"]) == extras.DEPENDENCIES
    assert project["description"] == extras.SUMMARY
    assert project["requires-python"] == extras.PYTHON
    (script,) = project["scripts"].items()
    files = members(build_wheel(sources.locate_sources())[1])
    assert information(files, "entry_points.txt").decode() == "[console_scripts]\n{} = {}\n".format(*script)
    metadata = message_from_bytes(information(files, "METADATA"))
    assert metadata["Name"] == project["name"]
    assert metadata["License-Expression"] == project["license"]
    assert requirements(metadata)["Provides-Extra"] == sorted(extras.EXTRAS)
    assert "torch>=2.6; extra == 'torch'" in metadata.get_all("Requires-Dist", [])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    origin = installed(build_wheel(sources.locate_sources())[1], tmp_path)
    shutil.move(origin.root / sources.LICENSE, tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=r"LICENSE: No such file"):
        build_wheel(origin)
