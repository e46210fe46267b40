"""The apt sources of this host, reduced to those of its own distribution, as one-line entries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from hyperpod_kit.errors import RehearsalError

SUPPORTED = {("debian", "12"): "bookworm", ("ubuntu", "22.04"): "jammy", ("ubuntu", "24.04"): "noble"}
RELEASES = {"debian": ("bullseye", "bookworm", "trixie", "forky"), "ubuntu": ("jammy", "noble")}
"""What node images can be made of on a host of each distribution: older and newer ones than its own too."""

COMPONENTS_SINCE = {"non-free-firmware": ("bookworm", "trixie", "forky")}
"""Archive components that not every release has."""


@dataclass(frozen=True)
class Distribution:
    """What this host runs: os-release's ID, VERSION_ID and the suite's code name."""

    id: str
    version: str
    codename: str


def detect_supported_distribution(root: Path = Path("/")) -> Distribution:
    """Distribution under `root`. Raises RehearsalError when the node image cannot be built from it."""
    try:
        text = (root / "etc/os-release").read_text()
    except OSError as err:
        raise RehearsalError(f"cannot tell the distribution of this machine: {err}") from err
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.M))
    key = (fields.get("ID", ""), fields.get("VERSION_ID", ""))
    if key not in SUPPORTED:
        supported = ", ".join(f"{name} {version}" for name, version in SUPPORTED)
        current = " ".join(key).strip() or "unknown"
        raise RehearsalError(
            f"node images are built from {supported}; this machine is {current}", hint="hyperpod-kit rehearse sandbox"
        )
    return Distribution(key[0], key[1], SUPPORTED[key])


def _parse_sources_list(text: str) -> Iterator[str]:
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        if line.startswith("deb "):
            yield line


def _parse_deb822_sources(text: str) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and key:
                fields[key] += " " + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        signed = fields.get("signed-by", "")
        # A key pasted into the stanza has no one-line form; apt then uses the host's trusted keys.
        options = ""
        if signed.startswith("/"):
            options = f"[signed-by={signed}] "
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield f"deb {options}{uri} {suite} {fields.get('components', '')}".strip()


def read_host_sources(codename: str, root: Path = Path("/")) -> list[str]:
    """One-line entries of the host whose suite belongs to `codename` (with -updates, -security), in file order.

    Raises RehearsalError when there is none.
    """
    apt = root / "etc/apt"
    sources: list[str] = []
    files = [
        apt / "sources.list",
        *sorted((apt / "sources.list.d").glob("*.list")),
        *sorted((apt / "sources.list.d").glob("*.sources")),
    ]
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(errors="replace")
        if file.suffix == ".sources":
            entries = _parse_deb822_sources(text)
        else:
            entries = _parse_sources_list(text)
        for entry in entries:
            fields = re.sub(r"\[[^]]*\]", "", entry).split()
            suite = ""
            if len(fields) > 2:
                suite = fields[2]
            belongs = suite in (codename, f"{codename}-updates", f"{codename}-security")
            # Third-party sources may use the distribution's suite names; its own mirrors carry "main".
            if belongs and "main" in fields[3:] and entry not in sources:
                sources.append(entry)
    if not sources:
        raise RehearsalError(
            f"no apt source of {codename} on this machine to build the node image from",
            hint="add the distribution's own source to /etc/apt/sources.list",
        )
    return sources


def apt_sources_for_release(release: str, host: Distribution, root: Path = Path("/")) -> list[str]:
    """One-line entries from which a node image of `release` is built: the host's own, with the suite renamed.

    The security archives of other releases are left out: an older one's index names packages that are gone (munge of
    bullseye-security, seen in November 2026), and these machines are reached from this host alone.

    Raises RehearsalError for a release of another distribution, and where the host has no source of its own.
    """
    releases = RELEASES[host.id]
    if release not in releases:
        raise RehearsalError(
            f"node images of {release} cannot be built on this machine ({host.id} {host.version}); "
            f"there are: {', '.join(releases)}"
        )
    sources = read_host_sources(host.codename, root)
    if release == host.codename:
        return sources
    return [
        _rewrite_entry_for_release(entry, host.codename, release)
        for entry in sources
        if f" {host.codename}-security " not in entry
    ]


def _rewrite_entry_for_release(entry: str, codename: str, release: str) -> str:
    """`entry` for another release of the same distribution."""
    options, rest = re.match(r"deb (\[[^]]*\] )?(.*)", entry).groups("")  # type: ignore[union-attr]
    uri, suite, *components = rest.split()
    kept = [name for name in components if release in COMPONENTS_SINCE.get(name, (release,))]
    return " ".join(["deb", *([options.strip()] if options else []), uri, suite.replace(codename, release), *kept])
