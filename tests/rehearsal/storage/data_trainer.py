"""A rank that reads its samples through ElasticLoader and says what each of them was.

    data_trainer.py INDEX LEDGER EPOCHS PAUSE

Rank 0 reads by itself, the others by worker processes. Its only work is a digest of every sample. It ends after so many
epochs as the file EPOCHS says, which is looked for after each of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex


def main(index: str, ledger: str, epochs: Path, pause: float) -> None:
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    loader = ElasticLoader(
        # A second, so that what hangs is left behind before the health check ends it.
        IndexedDataset(SampleIndex.open(index), answer=1.0),
        2,
        seed=1,
        rank=rank,
        ranks=ranks,
        num_workers=2 if rank else 0,
        collate_fn=list,
        ledger=ledger,
    )
    for epoch in itertools.count():
        if epochs.exists() and epoch >= int(epochs.read_text()):
            return
        loader.set_epoch(epoch)
        for batch in loader:
            real = batch[: len(batch) - loader.fillers]
            line = {"rank": rank, "epoch": epoch, "samples": [hashlib.sha256(one).hexdigest() for one in real]}
            os.write(1, (json.dumps(line) + "\n").encode())
            time.sleep(pause)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]))
