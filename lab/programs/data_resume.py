"""How long the first batch takes in the middle of many samples, in a process that is new, and nothing in memory.

    python lab/programs/data_resume.py --samples 10000000 --folder /a/disk    # 2 GB there, removed afterwards

Of lines, and of windows of 4096 tokens that are packed out of them. The kernel forgets index, lengths and files before
each start. torch's own import is not counted, this package's is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

LINE = "{} " + "the quick brown fox jumps over the lazy dog; " * 4 + "\n"
AT_A_TIME, FILES = 100_000, 4

FIRST_BATCH = """
import json, sys, time
import numpy, torch, torch.utils.data
wall, processor = time.perf_counter(), time.process_time()
from hyperpod_kit.data import ElasticLoader, IndexedDataset, PackedDataset, SampleIndex, order_of
folder, what = sys.argv[1:]
data = IndexedDataset(SampleIndex.open(folder), decode=False)
order = order_of(data, 1)
if what == "windows":
    lengths = numpy.load(folder + ".lengths.npy", mmap_mode="r")
    packed = PackedDataset(data, list, lengths, window=4096, order=order)
    loader = ElasticLoader(packed, 8, order=packed.windows)
else:
    loader = ElasticLoader(data, 256, order=order, collate_fn=list)
loader.load_state_dict({**loader.state_dict(), "position": loader.sample_order.samples // 2})
next(iter(loader))
wall, processor = time.perf_counter() - wall, time.process_time() - processor
print(json.dumps({"what": what, "seconds": wall, "processor": processor, "bytes": data.bytes_read}))
"""


def write_corpus(folder: str, samples: int) -> list[str]:
    """Lines of some 190 bytes in a few files."""
    paths = [os.path.join(folder, f"{number}.txt") for number in range(FILES)]
    for number, path in enumerate(paths):
        with open(path, "w") as stream:
            for begin in range(number * samples // FILES, (number + 1) * samples // FILES, AT_A_TIME):
                end = min(begin + AT_A_TIME, (number + 1) * samples // FILES)
                stream.write("".join(map(LINE.format, range(begin, end))))
    return paths


def main() -> None:
    import numpy as np

    from hyperpod_kit.data.index.build import build_index
    from hyperpod_kit.system import page_cache

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--folder", help="a directory of the disk to measure")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rows", help="a file to which each start appends a row of JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        paths = write_corpus(folder, args.samples)
        index_folder = os.path.join(folder, "index")
        index = build_index(paths, index_folder).index
        lengths = index.where(np.arange(index.samples))[2]
        np.save(f"{index_folder}.lengths.npy", lengths.astype("<u4"))
        os.sync()
        kept = [
            *paths,
            f"{index_folder}.lengths.npy",
            *(entry.path for entry in os.scandir(index_folder) if entry.is_file()),
        ]
        for _ in range(args.times):
            for what in ("lines", "windows"):
                page_cache.drop_cached_pages(kept)
                command = [sys.executable, "-c", FIRST_BATCH, index_folder, what]
                row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                print("{what}: {seconds:.2f} s, {processor:.2f} s of processor, {bytes} bytes read".format(**row))
                if args.rows:
                    with open(args.rows, "a") as rows:
                        rows.write(json.dumps({"samples": args.samples, **row}) + "\n")


if __name__ == "__main__":
    main()
