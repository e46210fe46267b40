"""`make fuzz`: the whole table, and exit code 1 when anything was violated."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.hostile.fuzz.engine import Row, lines, run
from tests.hostile.fuzz.table import PARSERS


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every parser that reads what another wrote.")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each parser (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other inputs")
    parser.add_argument("--workers", type=int, default=2, help="processes at once (default 2)")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all of it; what is not done then is not done")
    parser.add_argument("--only", default="", help="parsers with this in their name")
    parser.add_argument("--found", default="", help="a directory for the inputs that violate something")
    args = parser.parse_args()
    begin = time.monotonic()
    until = begin + args.minutes * 60
    wanted = [one for one in PARSERS if args.only in one.name]
    place = tempfile.mkdtemp(prefix="hpk-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    os.environ["HPK_FUZZ_DIR"] = place

    try:
        with ProcessPoolExecutor(args.workers, mp_context=get_context("fork")) as pool:
            asked = [pool.submit(_one, parser.name, args.count, args.seed, until) for parser in wanted]
            rows = [one.result() for one in asked]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print("\n".join(lines(rows)))
    short = [row.name for row in rows if row.inputs < args.count]
    for row in rows:
        for what, data in row.violations.items():
            print(f"\n{row.name}: {what}\n    {data[:300]!a}{' …' if len(data) > 300 else ''}")
            if args.found:
                os.makedirs(args.found, exist_ok=True)
                name = f"{abs(hash((row.name, what))):x}.json"
                with open(os.path.join(args.found, name), "w") as file:
                    json.dump({"parser": row.name, "what": what, "input": data.decode("latin-1")}, file)
    if short:
        print(f"\nnot all inputs in {args.minutes:g} minutes: {', '.join(short)}")
    bad = sum(len(row.violations) for row in rows)
    count, seconds = sum(row.inputs for row in rows), time.monotonic() - begin
    print(f"\n{count:,} inputs of {len(rows)} parsers in {seconds:.0f} s: {bad} violations")
    return 1 if bad or short else 0


def _one(name: str, count: int, seed: int, until: float) -> Row:
    row = run(next(parser for parser in PARSERS if parser.name == name), count, seed, until)
    print(
        f"{row.seconds:6.0f} s  {row.name}: {row.inputs:,} inputs, {len(row.violations)} violations",
        file=sys.stderr,
        flush=True,
    )
    return row


if __name__ == "__main__":
    sys.exit(main())
