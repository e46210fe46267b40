"""Configuration + sources -> bundle. Same input, same bytes; nothing of the machine it runs on gets in."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from hyperpod_kit.bundle import archive, contents, manifest, packages, portable, scripts, sources, templates, wheel
from hyperpod_kit.config.emit import provisioning_parameters_json_if_on_create
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.errors import BundleError
from hyperpod_kit.model.units import NODE_UNITS, mount_unit_templates_and_names
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.version import RELEASE

NODE_CONFIG = "node_config.json"
LEGACY_FILE = "provisioning_parameters.json"


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory.

    files: place -> content of everything that is written and uploaded, lib.tar.gz, SHA256SUMS and bundle.json included;
    library: place -> content of every member of lib.tar.gz; prefix: the bundle's place in the bucket.
    """

    bundle_id: str
    bucket: str
    prefix: str
    files: Mapping[str, bytes]
    library: Mapping[str, bytes]

    @property
    def installed_files(self) -> Mapping[str, bytes]:
        """Place -> content of everything that lies on a node: the members of lib.tar.gz in the archive's place."""
        beside = {path: data for path, data in self.files.items() if path != archive.ARCHIVE}
        return dict(sorted({**beside, **self.library}.items()))

    @property
    def source_s3_uri(self) -> str:
        """Return LifeCycleConfig.SourceS3Uri, with a slash at the end."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(len(data) for data in self.files.values())


def render(settings: Settings, origin: Optional[sources.Sources] = None) -> Bundle:
    """Render the bundle in memory. Raises BundleError when a source is missing or would not run on a node."""
    if settings.owners_without_access_point:
        raise BundleError(
            f"no access point yet for the home of {', '.join(settings.owners_without_access_point)}",
            hint="hyperpod-kit users apply",
        )
    origin = origin or sources.locate_sources()
    files = {target: path.read_bytes() for target, path in contents.list_copied_sources(origin)}
    config = settings.node_config()
    wheel_name, wheel_data = wheel.build_wheel(origin)
    files[f"{archive.LIBRARY}{wheel_name}"] = wheel_data
    files.update(packages.read_packages_given_as_files(settings))
    files.update(scripts.read_custom_script_files(settings))
    files[NODE_CONFIG] = config.to_json().encode()
    legacy = provisioning_parameters_json_if_on_create(settings)
    if legacy is not None:
        files[LEGACY_FILE] = legacy.encode()
    env = templates.make_jinja_environment(origin.templates)
    for mount in config.mounts:
        for template, unit in mount_unit_templates_and_names(mount):
            unit_path = f"units/{unit}"
            if unit_path in files:
                raise BundleError(
                    f"mount `{mount.name}` would write {unit_path} a second time", hint="rename one of the mounts"
                )
            files[unit_path] = templates.render_template(env, template, mount=mount, config=config)
    for template, unit in NODE_UNITS:
        files[f"units/{unit}"] = templates.render_template(env, template, config=config)
    return assemble_bundle(files, RELEASE, settings.bundle.bucket, f"{settings.bundle.prefix}{settings.cluster.name}/")


def assemble_bundle(shipped: Mapping[str, bytes], kit_version: str, bucket: str, parent_prefix: str) -> Bundle:
    """The bundle of these files, for a prefix below `parent`. Raises BundleError when one would not run on a node."""
    for path, data in shipped.items():
        portable.require_bundle_file_fit_for_nodes(path, data)
    library = {path: data for path, data in shipped.items() if path.startswith(archive.LIBRARY)}
    files = {path: data for path, data in shipped.items() if path not in library}
    tar = archive.make_tar(library)
    files[archive.TAR_SUM] = archive.tar_digest_text(tar)
    listing = manifest.make_sha256sums({**files, **library})
    identity = manifest.compute_bundle_id(listing)
    files[archive.ARCHIVE] = archive.gzip_tar(tar)
    files[manifest.SUMS] = listing
    files[manifest.DESCRIPTION] = manifest.make_bundle_json(kit_version, identity)
    return Bundle(identity, bucket, f"{parent_prefix}{identity}/", dict(sorted(files.items())), library)


def replace_bundle_directory(bundle: Bundle, directory: Path) -> None:
    """Write a bundle to a directory that is replaced as a whole. Raises BundleError when it holds other
    files.

    Modes are those of `file_mode`, whatever the umask and the sources say.
    """
    is_bundle = all((directory / name).is_file() for name in (manifest.DESCRIPTION, manifest.SUMS))
    if directory.is_dir() and any(directory.iterdir()) and not is_bundle:
        raise BundleError(f"{directory} holds something that is not a bundle", hint="choose an empty directory")
    foreign = _list_foreign_files(directory)
    if foreign:
        more = ""
        if foreign[1:]:
            more = f" and {len(foreign) - 1} more"
        raise BundleError(
            f"{directory} holds {foreign[0]}" + more + ", which no render wrote",
            hint="move them away, or choose another directory: it is replaced as a whole",
        )
    by_descriptor.make_parents(directory)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    new, old = staging / "new", staging / "old"
    try:
        for file_name, data in bundle.files.items():
            target = new / file_name
            by_descriptor.make_parents(target)
            by_descriptor.write_bytes(target, data)
            by_descriptor.set_mode(target, bundle_file_mode_from_name(file_name))
        for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
            by_descriptor.set_mode(folder, 0o755)
        # Two renames, so that a crash leaves the old bundle, the new one or, between them, none; never half of one.
        if directory.exists():
            by_descriptor.rename(directory, old)
        by_descriptor.rename(new, directory)
    finally:
        by_descriptor.remove_tree(staging, ignore_errors=True)


def _list_foreign_files(directory: Path) -> list[str]:
    """Return the files in a bundle's directory, rendered or unpacked by hand, that are not of that
    bundle."""
    sums = directory / manifest.SUMS
    if not sums.is_file():
        return []
    try:
        expected = {*manifest.parse_sha256sums(sums.read_bytes()), archive.ARCHIVE, manifest.SUMS, manifest.DESCRIPTION}
    except ValueError as err:
        raise BundleError(f"{sums} cannot be read: {err}", hint="choose an empty directory") from err
    existing = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
    return sorted(name for name in existing if name not in expected)


def bundle_file_mode_from_name(path: str) -> int:
    """Mode bits of a file of a bundle, by its name: on_create.sh gives them back by the same rule, as S3 keeps none."""
    if path.endswith(".sh") or "bin" in path.split("/")[:-1]:
        return 0o755
    return 0o644
