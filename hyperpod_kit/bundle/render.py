"""Configuration + sources -> bundle. Same input, same bytes; nothing of the machine it runs on gets in."""

from __future__ import annotations

import re
import shlex
import tempfile
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional

import jinja2

from hyperpod_kit.bundle import archive, contents, manifest, packages, portable, requirements, scripts, sources, wheel
from hyperpod_kit.config.emit import provisioning_parameters_json_if_on_create
from hyperpod_kit.config.settings.settings import Settings
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
    files.update(requirements.read_requirement_files(settings))
    files[NODE_CONFIG] = config.to_json().encode()
    legacy = provisioning_parameters_json_if_on_create(settings)
    if legacy is not None:
        files[LEGACY_FILE] = legacy.encode()
    env = make_jinja_environment(origin.templates)
    for mount in config.mounts:
        for template, unit in mount_unit_templates_and_names(mount):
            unit_path = f"units/{unit}"
            if unit_path in files:
                raise BundleError(
                    f"mount `{mount.name}` would write {unit_path} a second time", hint="rename one of the mounts"
                )
            files[unit_path] = render_template(env, template, mount=mount, config=config)
    for template, unit in NODE_UNITS:
        files[f"units/{unit}"] = render_template(env, template, config=config)
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
            f"{directory} holds {foreign[0]}" + more + ", which hyperpod-kit render did not write",
            hint="move them away, or choose another directory: the whole directory is replaced",
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


# Jinja2 as the bundle uses it: strict about undefined names, and nothing reaches a unit or a script unquoted.
#
# A value that is not plain must have gone through one of the filters:
#
#     {{ path | systemd_quote }}   one word of an Exec line
#     {{ text | unit_text }}       the rest of a line, such as Description=
#     {{ word | shell_quote }}     one word of a shell script
#
# Whatever else would be printed ends the rendering, so a template that forgets a filter cannot be shipped: at the
# latest the first odd value is refused, never passed on. systemd's rules: systemd.syntax(7), systemd.service(5)
# "Command lines".

PLAIN = re.compile(r"[A-Za-z0-9_./:@+=-]*")
"""What means the same to a shell, to systemd and to a reader. No comma: it separates mount options."""


class Quoted(str):
    """Text that a filter has made ready for its place."""

    __slots__ = ()


def systemd_quote(value: object) -> Quoted:
    """Quote one word of a unit's Exec line, with systemd's specifiers (%) and variables ($) taken literally.

    Raises ValueError for control characters, which have no business in a unit.
    """
    text = _require_printable(value)
    for special, literal in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(special, literal)
    return Quoted(f'"{text}"')


def escape_unit_line(value: object) -> Quoted:
    """The rest of a line of a unit that is no Exec line. Raises ValueError for what would not stay on its line."""
    text = _require_printable(value)
    if text != text.strip() or text.endswith("\\"):
        raise ValueError(f"the line of a unit cannot begin or end like {_shorten_ascii(text)}")
    return Quoted(text.replace("%", "%%"))


def shell_quote(value: object) -> Quoted:
    """Quote one word of a shell script. Raises ValueError for control characters."""
    return Quoted(shlex.quote(_require_printable(value)))


def make_jinja_environment(templates: Path) -> jinja2.Environment:
    """The environment that renders every template under `templates`."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(templates / "systemd"), str(templates)]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_require_plain_or_quoted,
    )
    env.filters |= {"shell_quote": shell_quote, "systemd_quote": systemd_quote, "unit_text": escape_unit_line}
    return env


def render_template(env: jinja2.Environment, template: str, **variables: Any) -> bytes:
    """Render one template to bytes. Raises BundleError with the template and the line."""
    try:
        return env.get_template(template).render(**variables).encode()
    except jinja2.TemplateNotFound as err:
        raise BundleError(
            f"there is no template {err.name} under templates/", hint="install hyperpod-kit again"
        ) from err
    except jinja2.TemplateSyntaxError as err:
        raise BundleError(f"templates/{err.name}, line {err.lineno}: {err.message}") from err
    except (jinja2.UndefinedError, ValueError) as err:
        raise BundleError(f"template {template}: {err}") from err


def _require_plain_or_quoted(value: object) -> object:
    """Return the value for Jinja2's `finalize`; raise ValueError unless it is plain or went through a
    quoting filter."""
    if isinstance(value, (Quoted, jinja2.Undefined)):  # Undefined raises by itself, with the name
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    raise ValueError(f"{_shorten_ascii(value)} must go through systemd_quote, unit_text or shell_quote")


def _require_printable(value: object) -> str:
    text = str(value)
    if any(_is_unfit_character(char) for char in text):
        raise ValueError(f"a unit cannot hold {_shorten_ascii(text)}")
    return text


def _is_unfit_character(char: str) -> bool:
    """Return whether a unit cannot hold the character.

    These are control characters, line breaks among them (Cc); halves of a surrogate pair, which no
    file can hold (Cs); noncharacters of Unicode, for which systemd passes over the whole line
    (src/basic/utf8.c: unichar_is_valid).
    """
    code = ord(char)
    return unicodedata.category(char) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def _shorten_ascii(value: object) -> str:
    shown = ascii(value)
    if len(shown) <= 60:
        return shown
    return shown[:57] + "…"
