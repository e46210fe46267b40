"""Trees to count, and what `du` says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hyperpod_kit.storage.usage.ledger import UsageLedger
from hyperpod_kit.storage.usage.report import UsageReport, make_report
from hyperpod_kit.storage.usage.walk import WalkRequest, walk_tree_into_ledger


def plant(root: Path, directories: int = 40, files: int = 25, links: bool = True) -> None:
    """Directories three levels deep with small files, links of both kinds, a hole and names that are no UTF-8."""
    for number in range(directories):
        place = root / f"team{number % 4}" / f"user{number % 8}" / f"part {number}\n日本"
        place.mkdir(parents=True)
        for one in range(files):
            (place / f"{one}").write_bytes(b"x" * (one * 400))
        if links:
            os.link(place / "1", root / f"team{number % 4}" / f"hard-{number}")
        (place / "link").symlink_to(root)
    with open(os.fsencode(root) + b"/hole-\xff\xfe", "wb") as file:
        file.truncate(1 << 30)


def du(root: Path) -> tuple[int, int]:
    """(bytes on disk, inodes), hard links once."""
    disk = subprocess.run(["du", "-s", "-B1", str(root)], check=True, capture_output=True, text=True).stdout
    inodes = subprocess.run(["du", "-s", "--inodes", str(root)], check=True, capture_output=True, text=True).stdout
    return int(disk.split()[0]), int(inodes.split()[0])


def count(root: Path, state: Path, **asked: object) -> UsageReport:
    """A whole walk."""
    wanted = WalkRequest(str(root), **asked)  # type: ignore[arg-type]
    ledger = UsageLedger(state, wanted.resume_identity(), now=time.time())
    walk_tree_into_ledger(wanted, ledger, lambda count: None)
    made = make_report(str(root), ledger, wanted.marks.values())
    ledger.close()
    return made


if __name__ == "__main__":
    print(json.dumps(count(Path(sys.argv[1]), Path(sys.argv[2])).to_json()))
