"""Whether Slurm's commands load our SPANK plugin: `sbatch --help` loads every plugin, and asks slurmctld nothing.

It costs 10 ms (Slurm 22.05), allocates nothing, and prints why a plugin was left out, which a job never sees.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence

from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, hyperpod

WITHIN = 10.0
"""Seconds."""

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""Jobs are submitted by ordinary users: a plugin that only root can read does not load for them."""

_ERROR = re.compile(r"^\S+: (?:error: )?((?:spank|plugin_load_from_file|plugin_peek).*)$", re.MULTILINE)


@dataclass(frozen=True)
class PluginLoad:
    """offers: whether sbatch offers --auto-resume, None when it could not be asked; error: Slurm's own words about
    a plugin of ours that it left out, "" without any."""

    offers: Optional[bool] = None
    error: str = ""


def probe_plugin_load(runner: Runner, sbatch: str = "sbatch", command_prefix: Sequence[str] = ()) -> PluginLoad:
    """Run `sbatch --help` to see whether the kit's SPANK plugin loads. `command_prefix`: words before the
    command that have it run as another user."""
    try:
        done = runner.run([*command_prefix, sbatch, "--help"], timeout=WITHIN, check=False)
    except RunError:
        return PluginLoad()
    if done.returncode != 0:
        return PluginLoad(None, "")
    offered = control.find_option_help(done.stdout, hyperpod.OPTION)
    return PluginLoad(bool(offered), _kit_plugin_error(done.stderr))


def _kit_plugin_error(stderr: str) -> str:
    """Return Slurm's first error line about the kit's plugin, "" without any; other plugins are ignored."""
    lines: List[str] = [line for line in _ERROR.findall(stderr) if "auto_resume" in line]
    if lines:
        return lines[0].strip()
    return ""
