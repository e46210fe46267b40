"""What data_rows.py starts: `data_pass.py LOADER` imports a loader and forks for each pass that is asked for on its
standard input; `data_pass.py serve FOLDER` is the rehearsal's S3 on loopback until its input ends."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_cells import Corpus, sample_crc
from data_loaders import BUCKET, KEY, LOADERS, SECRET, Loader, Source


def tree_processor_seconds() -> float:
    """Seconds of this process and of all that it has started: those that have ended, and those that still run."""
    ended = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    return time.process_time() + ended + sum(map(_running_processor_seconds, descendant_pids(os.getpid())))


def descendant_pids(pid: int) -> Iterator[int]:
    """All that a process has started and that still runs, and what those have started."""
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendant_pids(child)


def _running_processor_seconds(pid: int) -> float:
    """Of a process that runs, and of its children that have ended."""
    try:
        process_seconds = time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return process_seconds + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def read_epoch(loader: Loader, corpus: Corpus, source: Source, workers: int, proof: bool) -> dict[str, Any]:
    """An epoch: its figures, and what was read."""
    totals = {"samples": 0, "bytes": 0, "numbers": 0, "sum": 0}
    first = at_first = 0.0
    started_at, spent = time.perf_counter(), tree_processor_seconds()
    batches = iter(loader.batches(corpus, source, workers))
    for batch in batches:
        if not first:
            first, at_first = time.perf_counter() - started_at, tree_processor_seconds()
        totals["samples"] += len(batch)
        for sample in batch:
            number, text = loader.sample_number_and_content(corpus, sample)
            totals["numbers"] += number
            totals["bytes"] += len(text)
            if proof and isinstance(text, str):
                totals["sum"] += sample_crc(number, text.encode())
            elif proof:
                totals["sum"] += sample_crc(number, text)
    seconds, at_end = time.perf_counter() - started_at, tree_processor_seconds()
    del batches, batch
    gc.collect()  # workers end with the iterator that nobody has any more
    figures = {
        "first": first,
        "seconds": seconds,
        "processor": tree_processor_seconds() - spent,
        "behind_first": at_end - at_first,
    }
    return {**totals, **figures}


def handle_request(loader: Loader, request: dict[str, Any]) -> dict[str, Any]:
    """Prepare the loader's copy, or read epochs and return the figures of the last, as the request says. The time to
    the first batch is the first epoch's."""
    corpus, source = Corpus(**request["corpus"]), Source(**request["source"])
    if request["kind"] == "prepare":
        loader.prepare(corpus, source)
        return {}
    workers, proof = request["workers"], request["proof"]
    figures = read_epoch(loader, corpus, source, workers, proof)
    for _ in range(request["epochs"] - 1):
        first = figures["first"]
        figures = {**read_epoch(loader, corpus, source, workers, proof), "first": first}
    return figures


def fork_for_requests(kind: str) -> None:
    """Import a loader; then fork for each request read from standard input and print its response."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    loader = LOADERS[kind]
    import pyarrow.parquet
    import torch.utils.data

    assert pyarrow.parquet and torch.utils.data
    for name in loader.modules:
        importlib.import_module(name)
    gc.freeze()
    installed_version = ""
    if loader.distribution:
        installed_version = version(loader.distribution)
    print(json.dumps({"version": installed_version}), file=out)
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            print(json.dumps({"ended": pid}), file=out)
            continue
        os.setsid()
        print(json.dumps({"pid": os.getpid()}), file=out)
        try:
            response = handle_request(loader, json.loads(line))
        except BaseException as err:  # of a library; the row says it
            traceback.print_exc()
            response = {"error": f"{type(err).__name__}: {(str(err).strip().splitlines() or [''])[0][:160]}"}
        print(json.dumps(response), file=out)
        out.flush()
        os._exit(0)  # threads of some would be waited for


def serve_s3_until_stdin_ends(folder: str) -> None:
    """S3 on loopback."""
    from hyperpod_rehearsal.credentials.keys import Key
    from hyperpod_rehearsal.s3.store import StoredBuckets
    from hyperpod_rehearsal.server import serve as server_of

    store = StoredBuckets(Path(folder))
    store.create_bucket(BUCKET)
    server = server_of([("127.0.0.1", 0)], store, None, keys={KEY: Key(KEY, SECRET)})
    print(server.url, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve_s3_until_stdin_ends(sys.argv[2])
    else:
        fork_for_requests(sys.argv[1])
