"""The lifecycle scripts that a cluster had before, where they lie: in S3, or in a directory of the admin's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from hyperpod_kit.cli.terminal.output import print_to_stderr
from hyperpod_kit.errors import HyperpodKitError, UsageError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.config.importing.legacy_scripts import LegacyScripts

LARGEST = 50 << 20
"""Bytes that are downloaded; what a bundle may hold of one script."""


def classify_s3_scripts_downloading_if_directory(
    source: str, entry: str, region: Optional[str], directory: Optional[Path], config: Path
) -> LegacyScripts:
    """Classify the lifecycle scripts at an S3 URI; download them into `directory` when one is given.

    Raises UsageError for a directory that is not empty, AwsError, Unreachable.
    """
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.bundle.portable import PATH_PATTERN
    from hyperpod_kit.config.importing.legacy_scripts import READ, classify_scripts

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty", hint="specify a new directory for the scripts")
    name, _, prefix = source.partition("://")[2].partition("/")
    prefix = f"{prefix.rstrip('/')}/".lstrip("/")
    bucket = Bucket(name, region)
    sizes = bucket.sizes_by_relative_key(prefix)
    # The names are another's: one of `..` must not lead out of the directory.
    paths = [path for path in sizes if PATH_PATTERN.fullmatch(path)]
    print_to_stderr(f"lifecycle scripts at {source}: {counted(len(sizes), 'file')}")
    for path in sorted(set(sizes) - set(paths)):
        print_to_stderr(f"not carried over: {path!r} at {source}: a file of a bundle cannot have this name")
    if directory is not None:
        selected = paths
    else:
        selected = [path for path in paths if path in READ]
    if sum(sizes[path] for path in selected) > LARGEST:
        hint = "copy the scripts that you need to a directory, and specify it with --scripts DIR"
        raise UsageError(f"{source} holds more than {LARGEST >> 20} MiB", hint=hint)
    contents = {path: bucket.get(prefix + path) or b"" for path in selected}
    if directory is not None:
        for path, data in contents.items():
            target = directory / path
            by_descriptor.make_parents(target)
            by_descriptor.write_bytes(target, data)
    return classify_scripts(paths, contents, _relative_to_config(directory, config), entry)


def classify_legacy_scripts_in_directory(directory: Path, entry: str, config: Path) -> LegacyScripts:
    """Classify the lifecycle scripts in a directory.

    Raises UsageError when it has no files or cannot be read.
    """
    from hyperpod_kit.config.importing.legacy_scripts import READ, classify_scripts

    try:
        paths = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if path.is_file()]
        contents = {name: (directory / name).read_bytes() for name in READ if name in paths}
    except OSError as err:
        raise UsageError(f"{directory}: {err.strerror}") from err
    if not paths:
        raise UsageError(f"{directory} holds no files", hint="specify the directory with the lifecycle scripts")
    print_to_stderr(f"lifecycle scripts in {directory}: {counted(len(paths), 'file')}")
    return classify_scripts(paths, contents, _relative_to_config(directory, config), entry)


def classify_available_legacy_scripts(
    source: str, entry: str, directory: Optional[Path], config: Path, *, is_cluster_live: bool, region: Optional[str]
) -> Optional[LegacyScripts]:
    """Classify the earlier lifecycle scripts, from S3 or from `directory`; None when there are none or
    they cannot be read."""
    if is_cluster_live and source:
        try:
            return classify_s3_scripts_downloading_if_directory(source, entry, region, directory, config)
        except UsageError:
            raise
        except HyperpodKitError as err:
            print_to_stderr(f"cannot read the lifecycle scripts at {source}: {err}")
            return None
    if directory is not None:
        return classify_legacy_scripts_in_directory(directory, entry, config)
    if source:
        print_to_stderr(
            f"the lifecycle scripts at {source} were not examined: specify a copy of them with --scripts DIR, or "
            "use --from-cluster"
        )
    return None


def _relative_to_config(directory: Optional[Path], config: Path) -> Optional[str]:
    """Return the directory's path relative to the configuration's directory; None without a directory."""
    if directory is None:
        return None
    return Path(os.path.relpath(directory, config.parent)).as_posix()
