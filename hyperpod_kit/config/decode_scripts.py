"""The configuration's own scripts: hyperpod_kit.scripts[], in the order in which they run."""

from __future__ import annotations

from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ListedScript
from hyperpod_kit.model.scripts import AFTER_MOUNTS, CustomScript
from hyperpod_kit.model.states import ROLES


def decode_scripts(kit: Section) -> tuple[ListedScript, ...]:
    """Every script in the order of the file."""
    return tuple(_script(section) for section in kit.read_list_of_sections("scripts"))


def _script(section: Section) -> ListedScript:
    name, path = section.read_text_or_report("name"), section.read_text_or_report("path")
    script = CustomScript(
        name=name,
        # A file is its own program; of a directory the configuration says which.
        run=section.read_text_or_report("run", path.rstrip("/").rpartition("/")[2]),
        arguments=section.read_texts_or_report("arguments", ()),
        when=section.read_text_or_report("when", AFTER_MOUNTS),
        roles=section.read_texts_or_report("roles", ROLES),
        groups=section.read_texts_or_report("groups", ()),
        timeout=section.read_number_or_report("timeout", 300.0),
        required=section.read_boolean_or_report("required", True),
        always=section.read_boolean_or_report("always", False),
    )
    section.report_unknown_keys()
    return ListedScript(script, path)
