"""Configuration file -> Settings, with every finding of reading and of the rules at once.

load(path) = document.read -> access_points.read (the file beside it) -> decode (types, unknown keys)
    -> text_checks (control characters, secrets) -> validate (the rules) -> access_points.findings (do both files agree)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable

from hyperpod_kit.config import access_points, document, text_checks
from hyperpod_kit.config.decode import decode
from hyperpod_kit.config.findings import Finding, errors, under
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.config.source_map import SourceMap
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import ConfigError

OURS = "hyperpod_kit"
"""The key below which everything is that AWS's own file has not."""

DEFAULT_PATH = Path("provisioning_parameters.json")


@dataclass(frozen=True)
class Checked:
    """A configuration with all that was found. `settings` holds placeholders where a value is wrong."""

    path: Path
    settings: Settings
    findings: tuple[Finding, ...]
    source_map: SourceMap

    def is_sound(self, path: str) -> bool:
        """Whether no error was found at `path`, inside it or around it."""
        return not any(under(path, wrong.path) or under(wrong.path, path) for wrong in errors(self.findings))

    def placed(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Further findings about the same file, with their positions, in its order."""
        placed = [_placed(self.source_map, finding) for finding in findings]
        placed.sort(key=lambda finding: (finding.line or 1 << 30, finding.column, finding.path, finding.code))
        return tuple(placed)


def check(path: Path) -> Checked:
    """Read `path` and report everything that is wrong with it.

    Raises UsageError when there is no such file, ConfigError when it cannot be parsed at all.
    """
    doc = document.read(path)
    known = access_points.read(path)
    settings, found = decode(doc.values, known)
    if OURS not in doc.values and "controller_group" in doc.values:
        # Of AWS's own file everything else that would be said follows from this.
        found = [_without_ours(path, item) for item in found if item.path == OURS]
        return replace(Checked(path, settings, (), doc.source_map), findings=(*doc.findings, *found))
    settings = replace(settings, directory=path.parent)
    written = list(text_checks.findings(doc.values))
    secret = [finding.path for finding in written if finding.code == text_checks.SECRET]
    # An unknown key is named without its value; whatever else is said about a secret would repeat it.
    found = [item for item in found if item.code == "HPK-C001" or not any(under(item.path, at) for at in secret)]
    found = [*doc.findings, *written, *found]
    broken = [finding.path for finding in found]
    for finding in validate(settings):
        # What could not be read was replaced by a placeholder: what a rule says about that is noise.
        if not any(under(finding.path, place) for place in broken):
            found.append(finding)
    if settings.homes:
        found += access_points.findings(settings.homes.wanted(settings.users, settings.groups), known, path)
    # What is wrong with the homes is wrong with the home of every user: once is enough.
    found = list(dict.fromkeys(found))
    unplaced = Checked(path, settings, (), doc.source_map)
    return replace(unplaced, findings=unplaced.placed(found))


def _without_ours(path: Path, missing: Finding) -> Finding:
    return replace(
        missing,
        message="missing: this is a file as AWS's own scripts take it",
        hint=f"hyperpod-kit init --from-parameters {path} NEW.json adds it, with --from-cluster NAME or "
        "--from-cluster-config FILE from what there is; by hand: what `hyperpod-kit init --from-example` has",
    )


def load(path: Path) -> Settings:
    """Read a configuration that must be right. Raises ConfigError with all error findings."""
    checked = check(path)
    wrong = errors(checked.findings)
    if wrong:
        count = "1 error" if len(wrong) == 1 else f"{len(wrong)} errors"
        raise ConfigError(
            f"{path} has {count}",
            findings=[finding.render() for finding in wrong],
            hint=f"correct the file, then: hyperpod-kit validate {path}",
        )
    return checked.settings


def _placed(source_map: SourceMap, finding: Finding) -> Finding:
    """The finding with its position: of the key where the key is what is wrong, else of the value."""
    mark = None if finding.line else source_map.find(finding.path, key=finding.code == "HPK-C001")
    return replace(finding, line=mark.line, column=mark.column) if mark else finding
