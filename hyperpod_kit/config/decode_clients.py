"""The packages of mount clients: hyperpod_kit.clients[], one entry a file.

`client` may be left out where the name says it: a client's own package; a dependency has to say what it is for.
"""

from __future__ import annotations

from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ListedPackage
from hyperpod_kit.model.clients import Package, client_of_own_package_or_empty


def decode_packages(kit: Section) -> tuple[ListedPackage, ...]:
    """Every package in the order of the file."""
    return tuple(_package(section) for section in kit.read_list_of_sections("clients"))


def _package(section: Section) -> ListedPackage:
    name = section.read_text_or_report("name")
    package = Package(
        client=section.read_text_or_report("client", client_of_own_package_or_empty(name)),
        name=name,
        version=section.read_text_or_report("version"),
        arch=section.read_text_or_report("arch"),
        sha256=section.read_text_or_report("sha256"),
        url=section.read_text_or_report("url", ""),
    )
    file = section.read_text_or_report("file", "")
    section.report_unknown_keys()
    return ListedPackage(package, file)
