"""What every enroot container of this node finds inside: the kit's program and its marks, read-only.

`job run` starts each rank through the program, and a rank hears from the marks that this node has lost a mount. The
file does nothing on a node without enroot, and is read at the start of a container, whenever enroot comes.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.node.machine.context import Node
from hyperpod_kit.node.machine.files import read_text, write_if_different
from hyperpod_kit.node.machine.step import Step, StepOutcome
from hyperpod_kit.untrusted import by_descriptor

FSTAB = "/etc/enroot/mounts.d/50-hyperpod-kit.fstab"

FSTAB_TEXT = """\
# hyperpod-kit: its program and its marks in every container (enroot's own fstab format, enroot-mount(1))
/opt/hyperpod-kit /opt/hyperpod-kit none x-create=dir,rbind,ro,nosuid,nodev,rslave,nofail,silent 0 -1
/run/hyperpod-kit /run/hyperpod-kit none x-create=dir,rbind,ro,nosuid,nodev,noexec,rslave,nofail,silent 0 -1
"""
"""nofail, silent: no container may fail or say anything because of us; rslave: what is mounted below later is seen."""


def describe_pending_changes(node: Node) -> str:
    """Return what `write_fstab_mounting_kit_into_containers` would change, in words; "" for nothing."""
    if read_text(node.paths.under_root(FSTAB)) == FSTAB_TEXT:
        return ""
    return f"write {FSTAB}"


def write_fstab_mounting_kit_into_containers(node: Node) -> bool:
    """Write the fstab by which enroot mounts the kit's directories into every container, and make those in
    /run; True when the file was changed."""
    changed = write_if_different(node.paths.under_root(FSTAB), FSTAB_TEXT)
    # The first container may come before the first check of a mount makes the directory.
    by_descriptor.make_directories(node.paths.under_root("/run/hyperpod-kit"), 0o755)
    return changed


def _apply_fstab_mounting_kit(node: Node) -> StepOutcome:
    return StepOutcome(write_fstab_mounting_kit_into_containers(node))


STEP = Step("containers", _apply_fstab_mounting_kit, describe_pending_changes, required=False)
