"""`lfs hsm_*` with the words of Lustre 2.15, over a JSON file: no Lustre runs here.

{"flags": {path: int}, "queue": {path: looks until it is here}, "slow": looks, "drops": {path: requests it drops}}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_LFS"])
WORDS = {0x4: "released", 0x1: "exists", 0x8: "archived", 0x40: "lost_from_hsm"}


def main(verb: str, *paths: str) -> None:
    state = json.loads(STATE.read_text())
    absent = [path for path in paths if not os.path.exists(path)]
    if absent:
        sys.exit(f"cannot get HSM state: {absent[0]}: No such file or directory")
    for path in paths:
        flags, queue = state["flags"].get(path, 0), state["queue"]
        if verb == "hsm_restore":
            if state["drops"].get(path, 0) > 0:
                state["drops"][path] -= 1
            elif flags & 0x4:
                queue[path] = state["slow"]
        elif verb == "hsm_state":
            if path in queue:
                queue[path] -= 1
                if queue[path] <= 0:
                    del queue[path]
                    flags &= ~0x4
                    state["flags"][path] = flags
            words = " ".join(word for bit, word in WORDS.items() if flags & bit)
            print(f"{path}: (0x{flags:08x})" + (f" {words}, archive_id:1" if words else ""))
        elif verb == "hsm_action":
            print(f"{path}: " + ("RESTORE waiting (0 bytes moved)" if path in queue else "NOOP"))
    STATE.write_text(json.dumps(state))


main(*sys.argv[1:])
