"""Scripts of one's own: a name each, a place and nodes that there are, and together less time than a creation has."""

from __future__ import annotations

import math
import posixpath
from difflib import get_close_matches
from typing import Iterator

from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.scripts import PLACES, CustomScript
from hyperpod_kit.model.states import ROLES

AT = "hyperpod_kit.scripts"

LONGEST = 1200.0
"""Seconds; a whole creation has 1,500 (lifecycle_scripts/on_create.sh)."""


def check_names_unique(settings: Settings) -> Iterator[Finding]:
    """Each has a name of its own, which is that of its step and of its directory in the bundle."""
    first: dict[str, int] = {}
    for index, (script, at) in enumerate(_scripts_with_configuration_paths(settings)):
        if script.name in first and fits_field_pattern_if_any(f"{AT}[].name", script.name):
            other = f"{AT}[{first[script.name]}]"
            yield Finding("HPK-O002", f"{at}.name", f"`{script.name}` is the name of {other} too", "Rename one of them")
        first.setdefault(script.name, index)


def check_step_position_and_run_file(settings: Settings) -> Iterator[Finding]:
    """It runs at a place that there is, and starts a file of its own directory."""
    for script, at in _scripts_with_configuration_paths(settings):
        if script.when not in PLACES:
            near = get_close_matches(script.when, PLACES, 1, 0.5)
            if near:
                hint = f"Did you mean `{near[0]}`?"
            else:
                hint = f"Use {', '.join(PLACES)}"
            yield Finding("HPK-O003", f"{at}.when", f"`{script.when}` is not a place among the steps", hint)
        inside = posixpath.normpath(script.run) == script.run and not script.run.startswith(("/", ".", "-"))
        if not inside:
            yield Finding(
                "HPK-O004",
                f"{at}.run",
                f"`{script.run}` is not a file below the script's directory",
                "Write its path from there, like install.sh or bin/install.sh",
            )


def check_scripts_name_existing_roles_and_groups(settings: Settings) -> Iterator[Finding]:
    """The roles and instance groups that it names exist, and some node runs it."""
    roles = {group.name: group.role for group in settings.cluster.groups}
    for script, at in _scripts_with_configuration_paths(settings):
        for index, role in enumerate(script.roles):
            if role not in ROLES:
                yield Finding("HPK-O005", f"{at}.roles[{index}]", f"`{role}` is not a role", f"Use {', '.join(ROLES)}")
        missing_groups = [name for name in script.groups if name not in roles]
        for name in missing_groups:
            near = get_close_matches(name, roles, 1, 0.6)
            if near:
                hint = f"Did you mean `{near[0]}`?"
            else:
                hint = f"Instance groups are: {', '.join(roles) or 'none'}"
            yield Finding(
                "HPK-O006",
                f"{at}.groups[{script.groups.index(name)}]",
                f"there is no instance group `{name}`",
                hint,
            )
        all_exist = not missing_groups and all(role in ROLES for role in script.roles)
        if all_exist and not any(script.runs_on(role, name) for name, role in roles.items()):
            yield Finding("HPK-O007", f"{at}.roles", "no node runs this script", "Correct roles or groups", WARNING)


def check_timeouts_and_their_group_sums(settings: Settings) -> Iterator[Finding]:
    """What one node runs fits into the time that its creation has."""
    good = True
    for script, at in _scripts_with_configuration_paths(settings):
        if not 1 <= script.timeout <= LONGEST:
            good = False
            yield Finding("HPK-O008", f"{at}.timeout", f"{script.timeout:g} s", f"Use 1 to {LONGEST:g} seconds")
    for group in settings.cluster.groups if good else ():
        group_scripts = [
            script
            for script, _ in _scripts_with_configuration_paths(settings)
            if script.runs_on(group.role, group.name)
        ]
        seconds = math.fsum(script.timeout for script in group_scripts)
        if seconds > LONGEST:
            yield Finding(
                "HPK-O009",
                AT,
                f"the scripts of {group.name} may take {seconds:g} s together, and a creation has 1500 s in all",
                "Shorten their timeouts, or make one of them leave the long work to a unit",
                WARNING,
            )
            return


def _scripts_with_configuration_paths(settings: Settings) -> Iterator[tuple[CustomScript, str]]:
    return ((listed.script, f"{AT}[{index}]") for index, listed in enumerate(settings.scripts))
