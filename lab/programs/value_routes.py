"""How far a reader has to go to follow one value: through a save, a restore and a batch, as they run.

    python lab/programs/value_routes.py [save restore batch] [--route] [--json]

A save is followed from `Manager.save` with the State that it is given, in its steady state; a restore from
`Manager.restore` with the State; a batch from the numbers of its samples to what the loop is given.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from hyperpod_kit.checkpoint import Manager, State
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex
from hyperpod_kit.data.index.build import build_index
from hyperpod_lab.value_route import ValueRoute


def _make_state() -> State:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return State(model, optimizer, extra={"note": "value routes"})


def follow_save(folder: Path) -> ValueRoute:
    """Follow the second save of a run: the first one lays out the shard."""
    state = _make_state()
    with Manager(folder / "root") as manager:
        manager.restore(state)
        manager.save(1, state).wait()
        with ValueRoute(state) as route:
            handle = manager.save(2, state)
        handle.wait()
    return route


def follow_restore(folder: Path) -> ValueRoute:
    """Follow a restore from storage."""
    state = _make_state()
    with Manager(folder / "root") as manager:
        manager.restore(state)
        manager.save(1, state).wait()
    with Manager(folder / "root") as manager, ValueRoute(state) as route:
        manager.restore(state)
    return route


def follow_batch(folder: Path) -> ValueRoute:
    """Follow the data set through the second batch of a loader without workers."""
    corpus = folder / "corpus"
    corpus.mkdir()
    rows = [json.dumps({"text": f"sample {number}"}) for number in range(256)]
    (corpus / "a.jsonl").write_text("\n".join(rows) + "\n")
    build_index([str(corpus)], str(folder / "index"))
    dataset = IndexedDataset(SampleIndex.open(str(folder / "index")))
    batches = iter(ElasticLoader(dataset, batch_size=8, seed=1))
    next(batches)
    with ValueRoute(dataset) as route:
        next(batches)
    return route


FLOWS: dict[str, Callable[[Path], ValueRoute]] = {
    "save": follow_save,
    "restore": follow_restore,
    "batch": follow_batch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=f"{', '.join(FLOWS)} (default: all)")
    parser.add_argument("--route", action="store_true", help="show each call that is given the value")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    args = parser.parse_args()
    unknown = set(args.flows) - FLOWS.keys()
    if unknown:
        parser.error(f"unknown flow: {', '.join(sorted(unknown))}")
    figures = {}
    for name in args.flows or FLOWS:
        with tempfile.TemporaryDirectory() as folder:
            route = FLOWS[name](Path(folder))
        figures[name] = route.figures()._asdict()
        if args.route:
            for passage in route.passages:
                print(f"{name}: {passage.file} {passage.function} as {', '.join(passage.parameters)}")
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':8}{'functions':>10}{'files':>8}{'returns':>9}{'names':>7}")
    for name, row in figures.items():
        print(f"{name:8}{row['functions']:>10}{row['files']:>8}{row['returns']:>9}{row['names']:>7}")


if __name__ == "__main__":
    main()
