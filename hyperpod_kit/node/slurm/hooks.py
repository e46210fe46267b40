"""Our lines in slurm.conf and plugstack.conf, in a marked block, beside what the platform and an admin wrote.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Tuple

BEGIN = "# >>> hyperpod-kit"
END = "# <<< hyperpod-kit"

NOTHING: Mapping[str, str] = {}

MERGED = ("prologflags", "requeueexithold", "schedulerparameters")
"""Comma lists: what somebody else wants and what we want are wanted together."""


def without_kit_block(text: str) -> str:
    """`text` without our block, byte for byte what it was before the block was added."""
    return re.sub(rf"(?ms)^{re.escape(BEGIN)}$.*?^{re.escape(END)}$\n?", "", text)


def with_kit_block(text: str, lines: List[str]) -> str:
    """`text` with our block at its end, replacing an earlier one."""
    base = without_kit_block(text)
    if not base or base.endswith("\n"):
        joint = ""
    else:
        joint = "\n"
    return "\n".join([f"{base}{joint}{BEGIN}", *lines, END]) + "\n"


def kit_block_lines(text: str) -> List[str]:
    """The lines of our block, its marks left out; empty without one."""
    match = re.search(rf"(?ms)^{re.escape(BEGIN)}$\n(.*?)^{re.escape(END)}$", text)
    if match:
        return match.group(1).splitlines()
    return []


def without_setting(hooks: str, name: str) -> str:
    """Lines of our own, without those of one setting."""
    return "".join(line for line in hooks.splitlines(keepends=True) if not line.startswith(f"{name}="))


def parse_slurm_conf_settings(text: str) -> Dict[str, str]:
    """Parse the simple `Key=Value` lines of a slurm.conf (no NodeName or PartitionName lines); keys in lower
    case."""
    values = {}
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z]+)\s*=\s*(.*?)\s*(?:#.*)?$", line)
        if match and match.group(1).lower() not in ("nodename", "partitionname", "nodeset", "include"):
            values[match.group(1).lower()] = match.group(2)
    return values


def merge_hooks(slurm_conf: str, hooks: str, kit_settings: Mapping[str, str] = NOTHING) -> Tuple[str, List[str]]:
    """(new slurm.conf, notes). Somebody else's value of a single setting stays, and a note says so; lists are joined.
    `kit_settings`: settings that are ours whatever anybody says.

    Of a setting that is given twice, Slurm takes the last: a joined list in our block, at the end, is what counts.
    """
    existing = parse_slurm_conf_settings(without_kit_block(slurm_conf))
    lines, notes = [], []
    for line in hooks.splitlines():
        match = re.match(r"\s*([A-Za-z]+)\s*=\s*(.*?)\s*$", line)
        key = ""
        if match:
            key = match.group(1).lower()
        if match is None or key not in existing:
            lines.append(line)
        elif key in MERGED:
            values = [value for value in (existing[key] + "," + match.group(2)).split(",") if value]
            lines.append(f"{match.group(1)}={','.join(dict.fromkeys(values))}")
        elif existing[key] != match.group(2):
            notes.append(f"{match.group(1)} is already {existing[key]} and stays so")
    lines += [f"{key}={value}" for key, value in kit_settings.items()]
    return with_kit_block(slurm_conf, [line for line in lines if line not in (BEGIN, END)]), notes
