"""Packages of mount clients: every one pinned, none that changes under its name, none that brings a kernel."""

from __future__ import annotations

import re
from typing import Iterator
from urllib.parse import urlsplit

from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.clients import ARCHITECTURES, CLIENTS
from hyperpod_kit.model.instance_types import ARM64, architecture

AT = "hyperpod_kit.clients"
KERNEL = re.compile(r"linux-(?!libc-dev$|base$|firmware$).*|lustre-client-modules-[a-z]+")
"""Kernels, and the moving name of Lustre's newest module, which depends on the newest kernel."""


def check_package_architectures(settings: Settings) -> Iterator[Finding]:
    """Its architecture is one that a package has."""
    for index, listed in enumerate(settings.packages):
        package, at = listed.package, f"{AT}[{index}]"
        if package.arch not in ARCHITECTURES:
            yield Finding(
                "HPK-P003",
                f"{at}.arch",
                f"`{package.arch}` is not an architecture",
                f"Use one of {', '.join(ARCHITECTURES)}",
            )


def check_package_sources(settings: Settings) -> Iterator[Finding]:
    """A package comes from one place: a file, or a URL under which it never changes."""
    for index, listed in enumerate(settings.packages):
        url, at = listed.package.url, f"{AT}[{index}]"
        if bool(url) == bool(listed.file):
            sources = "neither a file nor a url"
            if url:
                sources = "both a file and a url"
            yield Finding(
                "HPK-P005",
                at,
                f"the package has {sources}",
                "Give one: with a file the node needs no internet",
            )
        elif url and not _is_plain_http_url(url):
            yield Finding(
                "HPK-P006",
                f"{at}.url",
                "not a plain http(s) URL",
                "Write https://host/path, without user, password, query or blanks",
            )
        elif re.search(r"latest", url, re.IGNORECASE):
            yield Finding(
                "HPK-P007",
                f"{at}.url",
                "the file at a `latest` URL changes, and every new node would fail then",
                "Use the URL that has the version in it",
            )


def check_packages_have_client_and_unique(settings: Settings) -> Iterator[Finding]:
    """Each belongs to a client, once, and no client has only what its package needs."""
    first_index: dict[tuple[str, str, str], int] = {}
    files: dict[tuple[str, str, str], int] = {}
    own_packages = {
        (listed.package.client, listed.package.arch)
        for listed in settings.packages
        if listed.package.client in CLIENTS and listed.package.is_clients_own_package
    }
    for index, listed in enumerate(settings.packages):
        package, at = listed.package, f"{AT}[{index}]"
        if package.client not in CLIENTS:
            if package.client:
                what = f"`{package.client}` is not a client"
            else:
                what = f"what is {package.name} for?"
            yield Finding("HPK-P008", f"{at}.client", what, f"Use one of {', '.join(CLIENTS)}")
        elif not {(package.client, package.arch), (package.client, "all")} & own_packages and package.arch != "all":
            yield Finding(
                "HPK-P009",
                at,
                f"{package.name} is listed for {package.arch}, {CLIENTS[package.client]} itself is not",
                "List the client's own package too",
            )
        first = first_index.setdefault((package.client, package.name, package.arch), index)
        # A package that two clients need is listed once for each, with the same sha256.
        twin = files.setdefault((package.name, package.version, package.arch), index)
        if first != index or settings.packages[twin].package.sha256 != package.sha256:
            yield Finding(
                "HPK-P010",
                at,
                f"{package.name} for {package.arch} is listed at {AT}[{min(first, twin)}] too",
                "Keep one, or the same file for both clients",
            )


def check_no_kernel_packages(settings: Settings) -> Iterator[Finding]:
    """A new kernel takes the Lustre client away at the next reboot: none is ever installed."""
    for index, listed in enumerate(settings.packages):
        if KERNEL.fullmatch(listed.package.name):
            yield Finding(
                "HPK-P011",
                f"{AT}[{index}].name",
                f"`{listed.package.name}` is a kernel, or brings one with it",
                "For Lustre use lustre-client-modules-<what `uname -r` says on the nodes>",
            )


def check_clients_cover_group_architectures(settings: Settings) -> Iterator[Finding]:
    """Where a client is listed for one architecture, no group that needs it has the other one."""
    listed: dict[str, set[str]] = {}
    for package in (entry.package for entry in settings.packages):
        if package.client in CLIENTS and package.arch in ARCHITECTURES and package.is_clients_own_package:
            listed.setdefault(package.client, set()).add(package.arch)
    for index, group in enumerate(settings.cluster.groups):
        needed = {mount.traits.client for mount in settings.mounts if mount.is_carried_by(group.role, group.name)}
        at = f"hyperpod_kit.cluster.instance_groups[{index}].{group.types_key}"
        for arch, name in {architecture(name): name for name in reversed(group.types)}.items():
            for client in sorted(needed & listed.keys()):
                if not listed[client] & {arch, "all"}:
                    yield Finding(
                        "HPK-P012",
                        at,
                        f"{name} is {arch}, and {client} is listed for {', '.join(sorted(listed[client]))} only",
                        f"List {CLIENTS[client]} for {arch} too, or be sure that the image has it",
                        severity=WARNING,
                    )
            if arch == ARM64 and needed - {""} and not settings.packages:
                clients = ", ".join(sorted(needed - {""}))
                yield Finding(
                    "HPK-P013",
                    at,
                    f"{name} is {arch}, and no package is listed of what its mounts need ({clients}): what AWS's image "
                    "for x86_64 has may not be on that for arm64",
                    "List the packages of arm64 (hyperpod_kit.clients), or be sure that the image has them",
                    severity=WARNING,
                )


def _is_plain_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and parts.username is None
        and not parts.query
        and not parts.fragment
        and port != 0
        and re.fullmatch(r"[!-~]+", url) is not None
    )
