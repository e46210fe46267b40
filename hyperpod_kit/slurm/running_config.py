"""`scontrol show config`: what the Slurm that runs goes by, in whatever form its version prints it.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

from hyperpod_kit.slurm import versions
from hyperpod_kit.slurm.versions import Version

HOOKS = "/opt/hyperpod-kit/current/slurm"
"""Where the bundle puts what Slurm runs: local on every node."""

HOOK_FILES = (("prolog", "prolog.sh"), ("epilog", "epilog.sh"))

PROGRAMS = ("prolog", "epilog", "taskprolog")
"""Settings that name programs, each of which newer Slurms print on a line of its own."""


def parse_show_config(text: str) -> Dict[str, str]:
    """Parse the `Key = value` lines of `scontrol show config`, with keys in lower case; Slurm's words for
    nothing become ""."""
    settings: Dict[str, str] = {}
    for row in text.splitlines():
        key, given, value = row.partition("=")
        if given and key.strip():
            value = value.strip()
            if value in ("(null)", "n/a", "N/A"):
                settings[key.strip().lower()] = ""
            else:
                settings[key.strip().lower()] = value
    return settings


def version_of(config: Mapping[str, str]) -> Version:
    """Return the version of the slurmctld that printed this."""
    return versions.parse_major_minor_or_zero(config.get("slurm_version", ""))


def hook_programs_or_none_if_unknown_form(config: Mapping[str, str], key: str, version: Version) -> Optional[List[str]]:
    """The programs of one hook, in either form that Slurm prints; None when this is neither."""
    if key in config:
        return [word for word in re.split(r"[,\s]+", config[key]) if word]
    listed = sorted(
        (int(match.group(1)), value)
        for match, value in ((re.fullmatch(rf"{key}\[(\d+)\]", name), value) for name, value in config.items())
        if match
    )
    lists = any(re.fullmatch(r"(prolog|epilog)\[\d+\]", name) for name in config)
    is_known_version = versions.LISTED_HOOKS <= version <= versions.NEWEST
    if listed or ((is_known_version or lists) and key != "taskprolog"):
        return [value for _, value in listed if value]
    return None


def hook_timeout_setting_names(config: Mapping[str, str]) -> Tuple[str, ...]:
    """Return the names of the settings that bound the hooks, as this Slurm prints them: one for each hook, or
    one for both."""
    apart = any(key in config for key in versions.HOOK_TIMEOUTS)
    if apart:
        return versions.HOOK_TIMEOUTS
    return (versions.ONE_HOOK_TIMEOUT,)


def is_in_force(config: Mapping[str, str], key: str, value: str) -> Optional[bool]:
    """Whether the running Slurm goes by `Key=value` of a slurm.conf; None where it prints the setting in no known form.

    Of a list all of our words must be there, in whatever order and beside whatever others; `60` is printed `60 sec`.
    """
    key = key.lower()
    if key in PROGRAMS:
        entries = hook_programs_or_none_if_unknown_form(config, key, version_of(config))
        if entries is None:
            return None
        return value in entries
    if key == versions.ONE_HOOK_TIMEOUT and key not in config:
        bounds = [config[name] for name in versions.HOOK_TIMEOUTS if name in config]
        if bounds:
            return all(_lowercase_words(value) <= _lowercase_words(bound) for bound in bounds)
        return None
    if key not in config:
        return None
    return _lowercase_words(value) <= _lowercase_words(config[key])


def _lowercase_words(value: str) -> FrozenSet[str]:
    return frozenset(word.lower() for word in re.split(r"[,\s]+", value) if word)
