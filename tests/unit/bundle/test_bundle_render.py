"""A bundle is a pure function of its input: same bytes, one name, nothing of this machine inside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Sequence

import pytest

from hyperpod_kit.bundle import archive, contents, manifest, portable, sources
from hyperpod_kit.bundle.compare import BundleDifference, compare_with_directory
from hyperpod_kit.bundle.render import Bundle, render, replace_bundle_directory
from hyperpod_kit.bundle.wheel import build_wheel
from hyperpod_kit.config.load import load
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.model.units import NODE_UNITS
from tests.support.installed_bundle import install

EXAMPLE = Path(__file__).parents[3] / "provisioning_parameters.example.json"
TEMPLATES = ("mount-s3.service.j2", "mount.service.j2", *(template for template, _ in NODE_UNITS))


@pytest.fixture
def config() -> Settings:
    return load(EXAMPLE)


@pytest.fixture
def origin(tmp_path: Path) -> sources.Sources:
    """Small sources: two-line scripts and templates, and a package with every part that ships."""
    root = tmp_path / "sources"
    for name in (*contents.ENTRY_SCRIPTS, *contents.PROGRAM.values()):
        put(root / "lifecycle_scripts" / name, "#!/bin/bash\n:\n")
    for name in TEMPLATES:
        put(root / "templates/systemd" / name, "[Unit]\nDescription=A unit of {{ config.cluster_name }}\n")
    put(root / "slurm/prolog.sh", "#!/bin/bash\n:\n")
    put(root / sources.EXAMPLE, "{}\n")
    put(root / sources.LICENSE, "Apache License\n")
    put(root / "slurm/plugin/auto_resume.c", "int x;\n")
    for name in contents.VENDORED_FILES:
        put(root / "package" / name, "")
    for package in contents.VENDORED_PACKAGES:
        put(root / "package" / package / "__init__.py", "")
    return sources.Sources(root, root / "package")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(directory).as_posix(): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_ships(config: Settings, origin: sources.Sources) -> None:
    put(origin.slurm / "plugin/auto_resume.so", "binary")
    put(origin.slurm / ".prolog.sh.swp", "")
    put(origin.package / "node/__pycache__/x.pyc", "")
    put(origin.package / "node/notes.txt", "")
    bundle = render(config, origin)
    assert sorted(bundle.library) == sorted(
        [
            "lib/__main__.py",
            f"lib/{build_wheel(origin)[0]}",
            *(f"lib/hyperpod_kit/{name}" for name in contents.VENDORED_FILES),
            *(f"lib/hyperpod_kit/{package}/__init__.py" for package in contents.VENDORED_PACKAGES),
        ]
    )
    assert sorted(bundle.installed_files) == sorted([*bundle.library, *(set(bundle.files) - {"lib.tar.gz"})])
    assert sorted(bundle.files) == sorted(
        [
            *contents.ENTRY_SCRIPTS,
            "bin/hyperpod-kit",
            "lib.tar.gz",
            "lib.tar.sha256",
            "slurm/prolog.sh",
            "slurm/plugin/auto_resume.c",
            "node_config.json",
            "provisioning_parameters.json",
            "SHA256SUMS",
            "bundle.json",
            "units/hyperpod-kit-s3-data.service",
            "units/hyperpod-kit-mount-fsx.service",
            "units/hyperpod-kit-mount-home.service",
            "units/hyperpod-kit-health.service",
            "units/hyperpod-kit-health.timer",
            "units/hyperpod-kit-repair@.service",
            "units/hyperpod-kit-drain.service",
            "units/hyperpod-kit-secrets.service",
            "units/hyperpod-kit-sweep.service",
            "units/hyperpod-kit-sweep.timer",
            "units/hyperpod-kit-slurm-state.service",
            "units/hyperpod-kit-memory.service",
            "units/hyperpod-kit-memory.timer",
            "units/hyperpod-kit-flush@.service",
            "units/hyperpod-kit-upkeep.service",
            "units/hyperpod-kit-upkeep.timer",
            "units/hyperpod-kit-slurm-guard.service",
            "units/hyperpod-kit-slurm-guard.timer",
            "units/hyperpod-kit-devices.service",
            "units/hyperpod-kit-devices.timer",
        ]
    )


def test_the_node_reads_back_what_the_configuration_says(config: Settings, origin: sources.Sources) -> None:
    assert NodeConfig.from_json(render(config, origin).files["node_config.json"].decode()) == config.node_config()


def test_same_input_same_bytes(config: Settings, origin: sources.Sources, tmp_path: Path) -> None:
    copy = tmp_path / "somewhere/else"
    shutil.copytree(origin.root, copy)
    for path in copy.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    first, second = render(config, origin), render(config, sources.Sources(copy, copy / "package"))
    assert first == second and list(first.files) == list(second.files)
    replace_bundle_directory(first, tmp_path / "a")
    old = os.umask(0o077)
    try:
        replace_bundle_directory(second, tmp_path / "b")
    finally:
        os.umask(old)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert {mode for mode, _ in tree(tmp_path / "a").values()} == {0o755, 0o644}
    assert tree(tmp_path / "a")["on_create.sh"][0] == 0o755


def test_every_change_is_another_bundle(config: Settings, origin: sources.Sources) -> None:
    before = render(config, origin)
    put(origin.slurm / "prolog.sh", "#!/bin/bash\nexit 0\n")
    after = render(config, origin)
    renamed = render(replace(config, cluster=replace(config.cluster, name="other")), origin)
    assert len({before.bundle_id, after.bundle_id, renamed.bundle_id}) == 3
    assert renamed.source_s3_uri == f"s3://sagemaker-hyperpod-kit-demo/hyperpod-kit/other/{renamed.bundle_id}/"


def test_sha256sum_agrees(config: Settings, origin: sources.Sources, tmp_path: Path) -> None:
    bundle = render(config, origin)
    replace_bundle_directory(bundle, tmp_path / "b")
    subprocess.run(["tar", "-xzf", "lib.tar.gz"], cwd=tmp_path / "b", check=True, timeout=20)
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path / "b", check=True, timeout=20
    )
    listed = [line[66:] for line in bundle.files["SHA256SUMS"].decode().splitlines()]
    assert listed == sorted(listed) and set(listed) == set(bundle.installed_files) - {"SHA256SUMS", "bundle.json"}
    about = json.loads(bundle.files["bundle.json"])
    assert (about["format"], about["bundle_id"]) == ("hpk-bundle/2", bundle.bundle_id) and len(bundle.bundle_id) == 16


@pytest.mark.parametrize("mode", ["on_init_complete", "ami_only"])
def test_the_legacy_file_is_left_out_beside_slurm_config(config: Settings, origin: sources.Sources, mode: str) -> None:
    config = replace(config, cluster=replace(config.cluster, lifecycle_mode=mode))
    assert "provisioning_parameters.json" not in render(config, origin).files


@pytest.mark.parametrize("beside", [(), ("bundle.json",), ("SHA256SUMS",)])
def test_a_directory_with_other_things_is_not_written_over(
    config: Settings, origin: sources.Sources, tmp_path: Path, beside: Sequence[str]
) -> None:
    put(tmp_path / "mine/thesis.tex", "years of work")
    for name in beside:
        put(tmp_path / "mine" / name, "{}")
    with pytest.raises(BundleError, match="holds something that is not a bundle"):
        replace_bundle_directory(render(config, origin), tmp_path / "mine")
    assert (tmp_path / "mine/thesis.tex").read_text() == "years of work"


def test_what_no_render_wrote_is_not_deleted(config: Settings, origin: sources.Sources, tmp_path: Path) -> None:
    replace_bundle_directory(render(config, origin), tmp_path / "b")
    put(tmp_path / "b/units/mine.txt", "years of work")
    with pytest.raises(BundleError, match=r"holds units/mine\.txt, which hyperpod-kit render did not write"):
        replace_bundle_directory(render(config, origin), tmp_path / "b")
    assert (tmp_path / "b/units/mine.txt").read_text() == "years of work"


def test_an_older_bundle_is_replaced_as_a_whole(config: Settings, origin: sources.Sources, tmp_path: Path) -> None:
    """One whose library lies there file by file, as hpk-bundle/1 had it, too."""
    bundle = render(config, origin)
    files = {**bundle.installed_files, "units/old.service": b""}
    replace_bundle_directory(
        replace(bundle, files={**files, manifest.SUMS: manifest.make_sha256sums(files)}), tmp_path / "b"
    )
    replace_bundle_directory(bundle, tmp_path / "b")
    assert set(tree(tmp_path / "b")) == set(bundle.files)
    assert [path.name for path in tmp_path.iterdir()].count("b") == 1 and not list(tmp_path.glob(".b.*"))


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("lifecycle_scripts/on_create.sh", "#!/bin/bash\r\n:\r\n", r"on_create\.sh has Windows line ends"),
        ("slurm/prolog.sh", ":\n", r"slurm/prolog\.sh does not begin with #!"),
        ("slurm/prolog.sh", "\ufeff#!/bin/bash\n:\n", r"slurm/prolog\.sh does not begin with #!"),
        ("slurm/prolog.sh", "#!/bin/bash\nexit 0", r"the last line of slurm/prolog\.sh has no newline"),
        ("slurm/prolog.sh", "#!/usr/local/bin/bash\n:\n", r"begins with .*, which not every node can start"),
        ("slurm/a b.sh", "#!/bin/bash\n:\n", r"'slurm/a b\.sh' cannot be the name of a file of a bundle"),
        ("templates/systemd/mount.service.j2", "{{ mount.nmae }}", r"template mount\.service\.j2: .*nmae"),
        ("templates/systemd/mount.service.j2", "a\n{% if %}", r"templates/mount\.service\.j2, line 2: "),
    ],
)
def test_sources_that_would_not_run(
    config: Settings, origin: sources.Sources, place: str, text: str, message: str
) -> None:
    (origin.root / place).write_bytes(text.encode())
    with pytest.raises(BundleError, match=message):
        render(config, origin)


def test_packages_are_their_vendors_bytes() -> None:
    portable.require_bundle_file_fit_for_nodes("packages/x86_64/mount-s3_1.23.0+b~1_amd64.deb", b"!<arch>\n\r\n\x00")
    with pytest.raises(BundleError, match="Windows line ends"):
        portable.require_bundle_file_fit_for_nodes("units/a.service", b"[Unit]\r\n")


@pytest.mark.parametrize("place", ["../x", "/x", "a//b", ".hidden", "units/.x", "a\nb", "a\\x2db", "ü", "-rf", "a/"])
def test_names_that_somebody_would_read_differently(place: str) -> None:
    with pytest.raises(BundleError, match="cannot be the name"):
        portable.require_bundle_file_fit_for_nodes(place, b"")


def test_a_directory_is_compared_byte_for_byte(config: Settings, origin: sources.Sources, tmp_path: Path) -> None:
    bundle = render(config, origin)
    everything = tuple(bundle.files)
    assert compare_with_directory(bundle, tmp_path / "b") == BundleDifference(added=everything)
    replace_bundle_directory(bundle, tmp_path / "b")
    assert not compare_with_directory(bundle, tmp_path / "b")
    put(tmp_path / "b/units/old.service", "")
    put(tmp_path / "b/node_config.json", "{}")
    (tmp_path / "b/on_create.sh").chmod(0o644)
    (tmp_path / "b/slurm/prolog.sh").unlink()
    (tmp_path / "b/bundle.json").unlink()
    (tmp_path / "b/bundle.json").symlink_to("SHA256SUMS")
    rewritten = {**bundle.library, "lib/__main__.py": b"print()\n", "lib/more.py": b""}
    (tmp_path / "b/lib.tar.gz").write_bytes(archive.gzip_tar(archive.make_tar(rewritten)))
    found = compare_with_directory(bundle, tmp_path / "b")
    assert found == BundleDifference(
        ("slurm/prolog.sh",),
        ("bundle.json", "lib.tar.gz", "lib/__main__.py", "node_config.json", "on_create.sh"),
        ("lib/more.py", "units/old.service"),
    )
    assert list(found.lines())[:2] == ["added    slurm/prolog.sh", "changed  bundle.json"]


def test_the_listing_is_read_back(config: Settings, origin: sources.Sources) -> None:
    bundle = render(config, origin)
    found = manifest.parse_sha256sums(bundle.files["SHA256SUMS"])
    assert set(found) == set(bundle.installed_files) - {"SHA256SUMS", "bundle.json"}
    assert found["node_config.json"] == hashlib.sha256(bundle.files["node_config.json"]).hexdigest()
    with pytest.raises(ValueError, match="not a line of SHA256SUMS"):
        manifest.parse_sha256sums(b"<html>not found</html>")


@pytest.mark.parametrize(
    "place", ["lifecycle_scripts/on_create.sh", "package/node/__init__.py", "templates/systemd/mount.service.j2"]
)
def test_a_missing_source_is_named(config: Settings, origin: sources.Sources, place: str) -> None:
    (origin.root / place).unlink()
    with pytest.raises(BundleError, match=Path(place).name.replace(".", r"\.")):
        render(config, origin)


@pytest.fixture(scope="module")
def shipped() -> Bundle:
    """The bundle of the example from the real sources."""
    return render(load(EXAMPLE))


def test_every_shell_script_of_the_real_bundle_parses(shipped: Bundle, tmp_path: Path) -> None:
    for data in shipped.files.values():
        if data.startswith((b"#!/bin/bash", b"#!/bin/sh")):
            (tmp_path / "script").write_bytes(data)
            subprocess.run(["bash", "-n", "script"], cwd=tmp_path, check=True, timeout=20)


def test_the_real_program_runs_without_anything_installed(shipped: Bundle, tmp_path: Path) -> None:
    install(shipped, tmp_path / "b")
    modules = [
        place[len("lib/") : -len(".py")].replace("/", ".").removesuffix(".__init__")
        for place in shipped.library
        if place.startswith("lib/hyperpod_kit/") and place.endswith(".py") and not place.endswith("__main__.py")
    ]
    code = f"import sys, importlib; sys.path.insert(0, 'lib'); [importlib.import_module(name) for name in {modules!r}]"
    python = [sys.executable, "-I", "-S"]
    for argv in ([*python, "-c", code], *([*python, "lib", part, "--help"] for part in ("node", "job", "checkpoint"))):
        done = subprocess.run(argv, cwd=tmp_path / "b", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
