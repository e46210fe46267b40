"""A private root for the machine's real dpkg and apt: real packages go in, and nothing of the machine is touched.

The programs are found through PATH, as on a node; each wrapper only moves the real one below the root and notes that
it ran.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence

from hyperpod_kit.model.clients import ARCHITECTURES, Package, client_of_own_package_or_empty
from hyperpod_kit.model.node_config import NodeConfig
from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.facts import NodeFacts
from hyperpod_kit.node.machine.paths import NodePaths
from hyperpod_kit.node.machine.timing import Clock
from hyperpod_kit.run import LocalRunner

DIRECTORIES = (
    "var/lib/dpkg/info",
    "var/lib/dpkg/updates",
    "var/lib/dpkg/triggers",
    "var/lib/dpkg/parts",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/log/apt",
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "etc/apt/preferences.d",
    "shims",
    "debs",
    "tmp",
)
KERNEL = os.uname().release
DEBIAN_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "amd64")
ARCH = {"amd64": "x86_64", "arm64": "arm64"}[DEBIAN_ARCH]
OTHER_ARCH = {"x86_64": "arm64", "arm64": "x86_64"}[ARCH]


@dataclass
class DebianRoot:
    """`root` holds one small system. `environment` makes its programs the ones that are found."""

    root: Path
    indexed: List[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in DIRECTORIES:
            (self.root / name).mkdir(parents=True)
        for name in ("status", "available"):
            (self.root / "var/lib/dpkg" / name).touch()
        (self.root / "etc/apt/sources.list").touch()
        dpkg = f"--root={self.root} --force-not-root --force-script-chrootless --log={self.root}/tmp/dpkg.log"
        (self.root / "etc/apt/apt.conf").write_text(
            f'Dir "{self.root}";\nDir::State::status "{self.root}/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n'
            + "".join(f'DPkg::Options:: "{option}";\n' for option in dpkg.split())
        )
        apt = f"export APT_CONFIG={self.root}/etc/apt/apt.conf\n"
        self.shim("apt-get", apt + 'exec /usr/bin/apt-get "$@"')
        self.shim("apt-mark", apt + 'exec /usr/bin/apt-mark "$@"')
        self.shim("dpkg", f'exec /usr/bin/dpkg {dpkg} "$@"')
        self.shim("dpkg-query", f'exec /usr/bin/dpkg-query --admindir={self.root}/var/lib/dpkg "$@"')
        self.shim("modinfo", f'[ -e "{self.root}/lib/modules/{KERNEL}/lustre.ko" ] && echo 2.15.6')

    def shim(self, name: str, script: str) -> None:
        path = self.root / "shims" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.root}/tmp/calls\n{script}\n')
        path.chmod(0o755)

    @property
    def environment(self) -> Dict[str, str]:
        return {"PATH": f"{self.root}/shims:{os.environ['PATH']}"}

    @property
    def calls(self) -> List[str]:
        """What ran, one line each."""
        path = self.root / "tmp/calls"
        return path.read_text().splitlines() if path.exists() else []

    def changes(self) -> List[str]:
        """Those calls that could have changed something."""
        changing = [call for call in self.calls if call.startswith(("apt", "dpkg --configure"))]
        return [call for call in changing if "--simulate" not in call]

    def deb(
        self,
        name: str,
        version: str,
        *,
        depends: str = "",
        arch: str = DEBIAN_ARCH,
        preinst: str = "",
        postinst: str = "",
        files: Sequence[str] = (),
        says: str = "",
    ) -> Path:
        """A real package whose `files` are scripts that say `says`, by default its own name and version."""
        tree = self.root / "tmp" / f"{name}_{version.replace(':', '_')}_{arch}"
        control = tree / "DEBIAN"
        control.mkdir(parents=True)
        control.joinpath("control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMaintainer: T <t@example.com>\n"
            + (f"Depends: {depends}\n" if depends else "")
            + "Description: for a test\n"
        )
        for name_of_script, script in (("preinst", preinst), ("postinst", postinst)):
            if script:
                control.joinpath(name_of_script).write_text(f"#!/bin/sh\n{script}\n")
                control.joinpath(name_of_script).chmod(0o755)
        for place in files:
            path = tree / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'#!/bin/sh\necho "{says or f"{name} {version}"}"\n')
            path.chmod(0o755)
        target = self.root / "debs" / f"{tree.name}.deb"
        subprocess.run(
            ["dpkg-deb", "-Znone", "--root-owner-group", "--build", str(tree), str(target)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=30,
        )
        return target

    def put_in_sources(self, *debs: Path) -> None:
        """Offer packages as a package source of the machine does."""
        self.indexed += debs
        entries = []
        for deb in self.indexed:
            control = subprocess.run(
                ["dpkg-deb", "--field", str(deb)], check=True, timeout=30, text=True, stdout=subprocess.PIPE
            ).stdout
            entries.append(f"{control}Filename: {deb.name}\nSize: {deb.stat().st_size}\nSHA256: {sha256(deb)}\n")
        (self.root / "debs/Packages").write_text("\n".join(entries))
        (self.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{self.root}/debs ./\n")
        subprocess.run([str(self.root / "shims/apt-get"), "-qq", "update"], check=True, timeout=60)
        (self.root / "tmp/calls").unlink()

    def listed(self, deb: Path, *, client: str = "", url: str = "", **changes: Any) -> Package:
        """The package as a configuration lists it; without a `url` its file is put into the bundle."""
        name, version, arch = deb.stem.split("_")
        architectures = {mine: ours for ours, mine in ARCHITECTURES.items()}
        values = {
            "client": client or client_of_own_package_or_empty(name),
            "name": name,
            "version": version,
            "arch": architectures[arch],
            "sha256": sha256(deb),
            "url": url,
            **changes,
        }
        package = Package(**values)
        if not url:
            place = self.root / "opt/hyperpod-kit/current" / package.bundle_path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(deb.read_bytes())
        return package

    def node(self, mounts: Sequence[Any], packages: Sequence[Package] = ()) -> Node:
        config = NodeConfig("demo", "on_create", {"g": "compute"}, tuple(mounts), packages=tuple(packages))
        facts = NodeFacts("ip-10-1-0-20", "10.1.0.20", "i-0w", "g", "compute", "us-east-1", "aws", "10.1.0.10")
        return Node(NodePaths(str(self.root)), config, facts, LocalRunner(), Clock())

    def installed(self) -> Dict[str, str]:
        """Package -> version and state, as dpkg says."""
        done = subprocess.run(
            [
                "dpkg-query",
                f"--admindir={self.root}/var/lib/dpkg",
                "--show",
                "--showformat=${Package}\t${Version} ${db:Status-Want} ${db:Status-Status}\n",
            ],
            timeout=30,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        )
        return dict(line.split("\t") for line in done.stdout.splitlines())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
