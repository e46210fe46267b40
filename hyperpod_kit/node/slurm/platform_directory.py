"""Where slurmctld would have its state if our lines were not in slurm.conf: a link to where it has it.

HyperPod's agent, or a person, may write slurm.conf without our block, and a slurmctld that reads it anew (since Slurm
23.11 `scontrol reconfigure` starts it anew) would begin with nothing, or with what lay there, and end every job that it
does not know. With the link it goes on with the same state.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import contextlib
import os

from hyperpod_kit.node.context import Node
from hyperpod_kit.node.slurm import state
from hyperpod_kit.node.slurm.hooks import parse_slurm_conf_settings, without_kit_block
from hyperpod_kit.untrusted import by_descriptor


def directory_to_link(node: Node, conf: str) -> str:
    """Return the directory that is to become a link, "" for none: slurm.conf names no directory on this
    machine's own disk, several controllers share it, or it is a link already. `conf`: the text of
    slurm.conf."""
    configured = parse_slurm_conf_settings(without_kit_block(conf)).get("statesavelocation", "")
    where = state.shared_state_location(node)
    if where is None or node.config.controllers > 1 or configured == where.state or configured.count("/") < 3:
        return ""
    if any(configured.startswith(f"{mount.path.rstrip('/')}/") for mount in node.mounts):
        return ""
    path = node.paths.under_root(configured)
    try:
        leads = os.readlink(path)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(path)):
            return configured
        return ""
    except OSError:
        if os.path.isdir(path) and not os.path.ismount(path):
            return configured
        return ""
    if leads != where.state:
        return configured
    return ""


def replace_by_link_to_shared_state(node: Node, directory: str, where: state.StateLocation) -> str:
    """Make `directory` a link to the shared state; what was there is put aside. slurmctld must not work on it.

    Return what was done, in words, also where it cannot be done: then the directory stays as it is.
    """
    path = node.paths.under_root(directory)
    link = f"{path}.hyperpod-kit"
    try:
        with contextlib.suppress(FileNotFoundError):
            by_descriptor.unlink(link)
        by_descriptor.symlink(where.state, link)
        kept = ""
        if os.path.lexists(path):
            kept = state.unused_set_aside_path(path, node.clock.wall())
            by_descriptor.rename(path, kept)
        by_descriptor.rename(link, path)
        state.remove_oldest_set_aside_copies(path, kept)
    except OSError as err:
        return f"{directory} does not lead to {where.state}: {err.strerror}"
    if not kept:
        return f"{directory} leads to {where.state} now"
    return f"{directory} leads to {where.state} now; what was there is kept in {kept}"
