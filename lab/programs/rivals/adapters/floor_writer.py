"""Writer process of the `floor` reference; imports nothing heavy, is exec'ed (not forked) by floor.py.

Reads JSON lines {"path","rank","nbytes"} on stdin, answers one line per save on stdout.
"""

import json
import mmap
import os
import sys

BLK = 8 << 20


def main():
    fd, size = int(sys.argv[1]), int(sys.argv[2])
    mv = memoryview(mmap.mmap(fd, size))
    for line in sys.stdin:
        m = json.loads(line)
        try:
            path, rank, nbytes = m["path"], m["rank"], m["nbytes"]
            os.makedirs(path, exist_ok=True)
            tmp = os.path.join(path, f".r{rank}.tmp")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            try:
                f = os.open(tmp, flags | os.O_DIRECT, 0o644)
            except OSError:
                f = os.open(tmp, flags, 0o644)
            off = 0
            while off < nbytes:
                off += os.write(f, mv[off : min(off + BLK, nbytes)])
            os.fsync(f)
            os.close(f)
            os.rename(tmp, os.path.join(path, f"r{rank}.bin"))
            d = os.open(path, os.O_RDONLY)
            os.fsync(d)
            os.close(d)
            print("ok", flush=True)
        except BaseException as e:
            print(repr(e), flush=True)


main()
