"""The packages of mount clients: hyperpod_kit.clients[], one entry a file.

`client` may be left out where the name says it: a client's own package; a dependency has to say what it is for.
"""

from __future__ import annotations

from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ListedPackage
from hyperpod_kit.model.clients import Package, client_of_package


def decode_packages(kit: Section) -> tuple[ListedPackage, ...]:
    """Every package in the order of the file."""
    return tuple(_package(section) for section in kit.children("clients"))


def _package(section: Section) -> ListedPackage:
    name = section.text("name")
    package = Package(
        client=section.text("client", client_of_package(name)),
        name=name,
        version=section.text("version"),
        arch=section.text("arch"),
        sha256=section.text("sha256"),
        url=section.text("url", ""),
    )
    file = section.text("file", "")
    section.report_unknown_keys()
    return ListedPackage(package, file)
