"""The packages of mount clients and of optional steps, pinned: what the configuration lists, what a node installs.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

CLIENTS: Dict[str, str] = {
    "efs-utils": "amazon-efs-utils",
    "mount-s3": "mount-s3",
    "nfs": "nfs-common",
    "lustre": "lustre-client-modules-",
    "mariadb": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "logrotate": "logrotate",
    "node-exporter": "prometheus-node-exporter",
    "docker": "docker.io",
    "docker-ce": "docker-ce",
    "podman": "podman",
    "enroot": "enroot",
    "pyxis": "nvslurm-plugin-pyxis",
    "pam-slurm-adopt": "libpam-slurm-adopt",
    "sssd": "sssd-ldap",
}
"""Client -> its own package; Lustre's has the release of the kernel behind it that it is built for. What is no client
of a mount belongs to one of the optional steps."""

ARCHITECTURES: Dict[str, str] = {"x86_64": "amd64", "arm64": "arm64", "all": "all"}
"""Architecture as AWS writes it -> as dpkg does."""


@dataclass(frozen=True)
class Package:
    """One .deb. `client`: what it belongs to, for a dependency too; `url`: "" when the file lies in the bundle."""

    client: str
    name: str
    version: str
    arch: str
    sha256: str
    url: str = ""

    @property
    def bundle_path(self) -> str:
        """Path in the bundle; without the epoch, as dpkg-name writes it."""
        version = self.version.split(":")[-1]
        return f"packages/{self.arch}/{self.name}_{version}_{ARCHITECTURES[self.arch]}.deb"

    @property
    def is_clients_own_package(self) -> bool:
        """Whether this is the client's own package and not something that it needs."""
        package_name = CLIENTS[self.client]
        if package_name.endswith("-"):
            return self.name.startswith(package_name)
        return self.name == package_name


def client_of_own_package_or_empty(name: str) -> str:
    """The client that a package is the own package of, "" for any other."""
    for client, package_name in CLIENTS.items():
        if name == package_name or (package_name.endswith("-") and name.startswith(package_name)):
            return client
    return ""
