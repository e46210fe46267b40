"""A day passes, in the memory of a node: what lies there becomes as old as it would be then.

In two ways. The day of a run that goes on is in the modification times of its slots alone, which the kernel sets when
a run begins and never again. The day that follows a capture is on its control page too.
"""

from __future__ import annotations

import os

from hyperpod_kit.checkpoint.agent.partner import partner_memory
from hyperpod_kit.checkpoint.agent.shm import capture_age, node_tiers, shm_slots
from hyperpod_kit.untrusted import by_descriptor

DAY = 25 * 3600.0
"""Seconds, a little more than those after which a capture is given up."""


def backdate_run(folder: str, seconds: float = DAY) -> None:
    """Set the times of a run's slots in memory back, as if the run had begun so much earlier; its captures keep
    their age."""
    for directory in (tier.slots_directory(folder) for tier in node_tiers.tiers_in_shared_memory()):
        for name in partner_memory.copy_slot_names(directory):
            for suffix in ("ctl", "img"):
                path = os.path.join(directory, name.file(suffix))
                if os.path.exists(path):
                    earlier = os.stat(path).st_mtime - seconds
                    by_descriptor.set_times(path, (earlier, earlier))


def backdate_captures(folder: str, seconds: float = DAY) -> None:
    """Set the moment at which every capture was sealed back, and the run's too; a capture without a moment keeps
    none."""
    for directory in (tier.slots_directory(folder) for tier in node_tiers.tiers_in_shared_memory()):
        for slot in shm_slots.attach_each_mappable(directory, partner_memory.copy_slot_names(directory)):
            page, moment = slot.page, capture_age.now()
            if page is not None:
                age = capture_age.seconds_since_sealing(page, moment)
                if age is not None:
                    sealed = moment._replace(seconds=moment.seconds - age - seconds)
                    slot.write_page(capture_age.dated(page, sealed))
            slot.close()
    backdate_run(folder, seconds)
