"""The mounts of a configuration: the long form under hyperpod_kit.mounts and the short forms of AWS's file.

A short form is a key or two at the top of the file that stand for one mount, where AWS's own scripts mount it.
The keys of the long form are the fields of the mount's dataclass, but for those that follow from the rest.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Optional

from hyperpod_kit.config.decode_fields import decode_dataclass
from hyperpod_kit.config.mounts.registry import FORMS
from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ProvisioningParameters
from hyperpod_kit.config.sourced import SourcedMount
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.model.mounts.kinds import KINDS

NICKNAMES = {nickname: kind for kind, form in FORMS.items() for nickname in form.nicknames}
"""What people write for a kind, for the hint."""


def decode_short_and_listed_mounts(kit: Section, parameters: ProvisioningParameters) -> tuple[SourcedMount, ...]:
    """Short forms first, then configuration order."""
    mounts = []
    for form in FORMS.values():
        if form.short_form is None:
            continue
        mount = form.short_form.mount(parameters)
        if mount is not None:
            mounts.append(SourcedMount(mount, form.short_form.first_key))
    for section in kit.read_list_of_sections("mounts"):
        mount = _decode_mount(section)
        if mount is not None:
            mounts.append(SourcedMount(mount, section.path))
    return tuple(mounts)


def _decode_mount(section: Section) -> Optional[Mount]:
    kind = section.read_text_or_report("kind")
    if kind not in KINDS:
        if kind in NICKNAMES:
            near = [NICKNAMES[kind]]
        else:
            near = get_close_matches(kind, KINDS, 1, 0.6)
        if kind or section.raw.get("kind") == "":
            hint = "Choose one of them"
            if near:
                hint = f"Did you mean `{near[0]}`?"
            section.record_finding(
                "HPK-C005",
                "kind",
                f"unknown kind `{kind}`: expected {', '.join(KINDS)}",
                hint,
            )
        return None
    mount: Mount = decode_dataclass(KINDS[kind], section)
    return mount
