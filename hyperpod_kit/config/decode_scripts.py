"""The configuration's own scripts: hyperpod_kit.scripts[], in the order in which they run."""

from __future__ import annotations

from hyperpod_kit.config.section import Section
from hyperpod_kit.config.settings import ListedScript
from hyperpod_kit.model.scripts import AFTER_MOUNTS, CustomScript
from hyperpod_kit.model.states import ROLES


def decode_scripts(kit: Section) -> tuple[ListedScript, ...]:
    """Every script in the order of the file."""
    return tuple(_script(section) for section in kit.children("scripts"))


def _script(section: Section) -> ListedScript:
    name, path = section.text("name"), section.text("path")
    script = CustomScript(
        name=name,
        # A file is its own program; of a directory the configuration says which.
        run=section.text("run", path.rstrip("/").rpartition("/")[2]),
        arguments=section.texts("arguments", ()),
        when=section.text("when", AFTER_MOUNTS),
        roles=section.texts("roles", ROLES),
        groups=section.texts("groups", ()),
        timeout=section.number("timeout", 300.0),
        required=section.boolean("required", True),
        always=section.boolean("always", False),
    )
    section.report_unknown_keys()
    return ListedScript(script, path)
