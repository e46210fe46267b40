"""What cold restores read of storage, and what is handed on between ranks: counted in real gloo processes.

    python lab/programs/restore_reads.py [--width 1024] [--ranks 2,4,16]

FSDP2, HSDP and DDP with AdamW, each restored by the same ranks, by half as many, divided otherwise, and the weights
alone (`load_weights`). `read`: bytes of shards that all ranks together read from storage, as a part of the shards'
bytes. `moved`: what a rank read and was sent, as a part of what it holds afterwards, the most of all ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.distributed import reads_job, sharded_job


def print_restore_reads(kind: str, world: int, width: int) -> None:
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-reads-") as name:
        folder, root = Path(name), name + "/root"
        saved = sharded_job.run(folder, world, reads_job.save, kind, root, width, timeout=600.0)
        size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        other = "ddp"
        if kind == "ddp":
            other = "fsdp2"
        half_kind = kind
        if kind == "hsdp" and world < 8:
            half_kind = "fsdp2"
        for what, by, how, weights in [
            ("the same ranks", world, kind, False),
            ("half as many", world // 2, half_kind, False),
            (f"as {other}", world, other, False),
            ("weights, as ddp", world, "ddp", True),
        ]:
            reports = sharded_job.run(folder, by, reads_job.restore, how, root, width, False, weights, timeout=600.0)
            right = weights or all(report["holds"] == saved[0] for report in reports)
            moved = max((report["shards"] + report["received"]) / report["needed"] for report in reports)
            read = sum(report["shards"] for report in reports) / size
            verdict = ""
            if not right:
                verdict = "WRONG"
            print(f"{kind:<6}{world:>4} ranks  {what:<16} read {read:.3f}  moved {moved:.2f}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024, help="of four layers: 1024 makes 50 MB of state")
    parser.add_argument("--ranks", default="2,4,16")
    args = parser.parse_args()
    for world in map(int, args.ranks.split(",")):
        kinds = ["ddp", "fsdp2"]
        if world >= 4:
            kinds.append("hsdp")
        for kind in kinds:
            print_restore_reads(kind, world, args.width)


if __name__ == "__main__":
    main()
