"""`make fuzz`: the whole table, and exit code 1 when anything was violated.

With `--rows FILE` each parser that is through is a line of that file, and what has its line there is not run again.
Ended by SIGTERM it takes its files away; of one that was killed the next one does so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Callable, Dict, List

from hyperpod_kit.system.process import make_parent_death_hook
from tests.hostile.fuzz import places
from tests.hostile.fuzz.engine import Row, lines, run
from tests.hostile.fuzz.table import PARSERS


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every parser that reads what another wrote.")
    parser.add_argument("--count", type=int, default=100_000, help="inputs for each parser (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other inputs")
    parser.add_argument("--workers", type=int, default=2, help="processes at once (default 2)")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all of it; what is not done then is not done")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="parsers with one of these in their name, in this order"
    )
    parser.add_argument("--found", default="", help="a directory for the inputs that violate something")
    parser.add_argument("--rows", type=Path, help="append a line a parser to this file, and leave out what is in it")
    args = parser.parse_args()
    begin = time.monotonic()
    until = begin + args.minutes * 60
    earlier = _earlier(args)
    due = [name for name in _chosen(args.only) if name not in earlier]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    place = places.own_base()
    os.environ["HPK_FUZZ_DIR"] = place

    try:
        arm = make_parent_death_hook(os.getpid())
        with ProcessPoolExecutor(
            args.workers, mp_context=get_context("fork"), initializer=_begin, initargs=(arm,)
        ) as pool:
            try:
                results = [pool.submit(_fuzz, name, args, until) for name in due]
                rows = [*earlier.values(), *(result.result() for result in results)]
            except BaseException:
                for worker in multiprocessing.active_children():
                    worker.kill()
                raise
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


def _earlier(args: argparse.Namespace) -> Dict[str, Row]:
    """The parsers that had all these inputs in an earlier run, by name, without a violation."""
    if args.rows is None or not args.rows.exists():
        return {}
    entries: List[Dict[str, Any]] = [json.loads(line) for line in args.rows.read_text().splitlines()]
    same = [entry for entry in entries if (entry["count"], entry["seed"]) == (args.count, args.seed)]
    rows = [Row(**{**entry["row"], "violations": {}}) for entry in same if not entry["row"]["violations"]]
    chosen = _chosen(args.only)
    return {row.name: row for row in rows if row.name in chosen and row.inputs >= args.count}


def _chosen(words: List[str]) -> List[str]:
    """Names of the parsers with one of these words in their name, in the order of the words."""
    return list(dict.fromkeys(one.name for word in words for one in PARSERS if word in one.name))


def _begin(arm: Callable[[], None]) -> None:
    """In a worker: it ends with the program, and SIGTERM is the program's affair."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    arm()


def _fuzz(name: str, args: argparse.Namespace, until: float) -> Row:
    row = run(next(parser for parser in PARSERS if parser.name == name), args.count, args.seed, until)
    print(
        f"{row.seconds:6.0f} s  {row.name}: {row.inputs:,} inputs, {len(row.violations)} violations",
        file=sys.stderr,
        flush=True,
    )
    if args.rows is not None:
        violations = {reason: data.decode("latin-1") for reason, data in row.violations.items()}
        entry = {"count": args.count, "seed": args.seed, "row": {**asdict(row), "violations": violations}}
        with args.rows.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return row


if __name__ == "__main__":
    sys.exit(main())
