"""Which version this is: `0.1.0` for a release, `0.1.0.dev0+g<commit>` for a build between releases.

The number of the release stands here; the commit comes from the first of these that is there:

1. the package's `.dist-info` directory beside it, in an installation;
2. git, in a checkout;
3. PKG-INFO, in an unpacked sdist;
4. commit.txt, which `git archive` fills in, in an unpacked archive of the repository.

Where none of them is there, as in a bundle on a node, the version is the number alone: a bundle is named by its
contents, and does not change when a commit changes none of them.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Mapping, Optional, Tuple

RELEASE = "0.1.0"
"""The number of this release, or of the next one in a build between releases; on_create.sh reads it here."""

COMMIT_FILE = "commit.txt"
_INSTALLED = re.compile(r"hyperpod_kit-([0-9][0-9A-Za-z.+!]*)\.dist-info")
_COMMIT = re.compile(r"([0-9a-f]{40,64})(?: (.*))?")
_LONGEST = 5.0
"""Seconds that git gets to answer."""


@functools.lru_cache(maxsize=None)
def version() -> str:
    """Return the version of the package that this file belongs to."""
    package = os.path.dirname(os.path.realpath(__file__))
    return version_of_kit_in_directory(os.path.dirname(package))


def version_of_kit_in_directory(directory: str) -> str:
    """Return the version of a package that lies in `directory`."""
    return (
        _version_from_dist_info(directory)
        or _release_or_dev_version_of_commit(_git_commit_and_refs(directory))
        or _version_from_pkg_info(directory)
        or _release_or_dev_version_of_commit(_read_archive_commit_and_refs(directory))
        or RELEASE
    )


def release_number_of_version(version_text: str) -> str:
    """Return the number of the release that a version belongs to."""
    return version_text.partition("+")[0].partition(".dev")[0]


def _version_from_dist_info(directory: str) -> Optional[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return None
    matches = [match.group(1) for match in map(_INSTALLED.fullmatch, names) if match is not None]
    # An installation that was cut off may have left two.
    return matches[0] if len(matches) == 1 else None


def _git_commit_and_refs(directory: str) -> Optional[str]:
    """`<hash> <names>`, where names are the branches and tags of that commit."""
    if not os.path.exists(os.path.join(directory, ".git")):
        return None
    import subprocess  # of a checkout alone

    try:
        completed = subprocess.run(
            ["git", "-C", directory, "log", "-1", "--no-show-signature", "--format=%H %D"],
            env=_without_git_variables(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if completed.returncode != 0:
        return None
    return completed.stdout.decode("utf-8", "replace")


def _without_git_variables(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without what names another repository: a hook of git has that in its environment."""
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")}


def _version_from_pkg_info(directory: str) -> Optional[str]:
    text = _read_text_or_none(os.path.join(directory, "PKG-INFO"))
    if text is None:
        return None
    fields = dict(_split_field(line) for line in text.partition("\n\n")[0].splitlines())
    return fields.get("Version") if fields.get("Name") == "hyperpod-kit" else None


def _split_field(line: str) -> Tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value


def _read_archive_commit_and_refs(directory: str) -> Optional[str]:
    return _read_text_or_none(os.path.join(directory, COMMIT_FILE))


def _read_text_or_none(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _release_or_dev_version_of_commit(commit_and_refs: Optional[str]) -> Optional[str]:
    """Return the version at a commit, `<hash> <names>`: a release's where one of the names is its tag."""
    match = _COMMIT.fullmatch(commit_and_refs.strip()) if commit_and_refs is not None else None
    if match is None:
        return None
    names = (match.group(2) or "").split(", ")
    if f"tag: v{RELEASE}" in names:
        return RELEASE
    return f"{RELEASE}.dev0+g{match.group(1)[:12]}"
