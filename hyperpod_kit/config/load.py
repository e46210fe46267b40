"""Configuration file -> Settings, with every finding of reading and of the rules at once.

load(path) = document.read_document -> access_points.read_access_points_or_empty (the file beside it)
    -> decode (types, unknown keys) -> text_checks (control characters, secrets) -> validate (the rules)
    -> access_points.compare_with_recorded (do both files agree)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.reading import document, text_checks
from hyperpod_kit.config.reading.source_map import SourceMap
from hyperpod_kit.config.settings import access_points
from hyperpod_kit.config.settings.findings import Finding, is_key_path_at_or_inside, select_errors
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import ConfigError
from hyperpod_kit.untrusted.text import counted

KIT_KEY = "hyperpod_kit"
"""The key below which everything is that AWS's own file has not."""

DEFAULT_PATH = Path("provisioning_parameters.json")


@dataclass(frozen=True)
class Checked:
    """A configuration with all that was found. `settings` holds placeholders where a value is wrong."""

    path: Path
    settings: Settings
    findings: tuple[Finding, ...]
    source_map: SourceMap

    def has_no_error_in_or_around(self, path: str) -> bool:
        """Whether no error was found at `path`, inside it or around it."""
        return not any(
            is_key_path_at_or_inside(path, wrong.path) or is_key_path_at_or_inside(wrong.path, path)
            for wrong in select_errors(self.findings)
        )

    def with_positions_in_file_order(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return further findings about the same file with their positions, in the file's order."""
        placed = [_with_position(self.source_map, finding) for finding in findings]
        placed.sort(key=lambda finding: (finding.line or 1 << 30, finding.column, finding.path, finding.code))
        return tuple(placed)


def check(path: Path, *, with_service_model: bool = True) -> Checked:
    """Read `path` and report everything that is wrong with it; `with_service_model`: see `load`.

    Raises UsageError when there is no such file, ConfigError when it cannot be parsed at all.
    """
    doc = document.read_document(path)
    recorded_points = access_points.read_access_points_or_empty(path)
    settings, findings = decode_settings(doc.values, recorded_points)
    if KIT_KEY not in doc.values and "controller_group" in doc.values:
        # Of AWS's own file everything else that would be said follows from this.
        findings = [_explain_missing_kit_key(path, item) for item in findings if item.path == KIT_KEY]
        return replace(Checked(path, settings, (), doc.source_map), findings=(*doc.findings, *findings))
    settings = replace(settings, directory=path.parent)
    text_findings = list(text_checks.find_secrets_and_unfit_texts(doc.values))
    secret = [finding.path for finding in text_findings if finding.code == text_checks.SECRET]
    # An unknown key is named without its value; whatever else is said about a secret would repeat it.
    findings = [
        item
        for item in findings
        if item.code == "HPK-C001" or not any(is_key_path_at_or_inside(item.path, at) for at in secret)
    ]
    findings = [*doc.findings, *text_findings, *findings]
    broken = [finding.path for finding in findings]
    for finding in validate(settings, with_service_model=with_service_model):
        # What could not be read was replaced by a placeholder: what a rule says about that is noise.
        if not any(is_key_path_at_or_inside(finding.path, broken_path) for broken_path in broken):
            findings.append(finding)
    if settings.homes:
        findings += access_points.compare_with_recorded(
            settings.homes.desired_access_points(settings.users, settings.groups), recorded_points, path
        )
    # What is wrong with the homes is wrong with the home of every user: once is enough.
    findings = list(dict.fromkeys(findings))
    unplaced = Checked(path, settings, (), doc.source_map)
    return replace(unplaced, findings=unplaced.with_positions_in_file_order(findings))


def _explain_missing_kit_key(path: Path, missing: Finding) -> Finding:
    return replace(
        missing,
        message="missing: this is a file as AWS's own scripts take it",
        hint=f"hyperpod-kit init --from-parameters {path} NEW.json adds it, with --from-cluster NAME or "
        "--from-cluster-config FILE from what there is; by hand: what `hyperpod-kit init --from-example` has",
    )


def load(path: Path, *, with_service_model: bool = True) -> Settings:
    """Read a configuration that must be right. Raises ConfigError with all error findings.

    `with_service_model`: also compare the request of CreateCluster with botocore's model, which takes a tenth of a
    second to read; `upload`, which sends no such request, does without.
    """
    checked = check(path, with_service_model=with_service_model)
    wrong = select_errors(checked.findings)
    if wrong:
        raise ConfigError(
            f"{path} has {counted(len(wrong), 'error')}",
            findings=[finding.render() for finding in wrong],
            hint=f"correct the file, then: hyperpod-kit validate {path}",
        )
    return checked.settings


def _with_position(source_map: SourceMap, finding: Finding) -> Finding:
    """The finding with its position: of the key where the key is what is wrong, else of the value."""
    if finding.line:
        position = None
    else:
        position = source_map.find_nearest_position(finding.path, key=finding.code == "HPK-C001")
    if position:
        return replace(finding, line=position.line, column=position.column)
    return finding
