"""Save, build afresh, restore, ten steps more: every case of the zoo in every layout, beside torch's own loading.

    python -m tests.zoo [--rows FILE] [--table FILE] [--layout NAME] [--only WORD]

Cases that FILE has rows of are not tried again, so that an interrupted run goes on. Exits with 1 when a case that
torch's own loading restores does not come back from our checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.ports import free_port
from tests.zoo import table
from tests.zoo.cases import every_case
from tests.zoo.training import Case

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = {"1": 1, "fsdp2": 2, "tp2 x fsdp2": 4}
CASE_SECONDS = 150
"""How long a case may go on without an end."""
UNLIKE_SECONDS = 20
"""The same after the end on a rank that has not fared as the control: the others may wait for it without end."""
IMPORTED = (
    *warm.TORCH,
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint.state_dict",
    "tests.zoo.imported",
)
"""What the ranks are forked with."""


class Group:
    """The ranks of a layout: one process each, which try cases until one of them ends."""

    def __init__(self, folder: Path, layout: str, numbers: list[int]) -> None:
        self._rows = folder / f"rows-{layout.replace(' ', '')}"
        self._log = folder / f"log-{layout.replace(' ', '')}"
        self._read = self._rows.stat().st_size if self._rows.exists() else 0
        world, port = LAYOUTS[layout], free_port()
        words = ["-m", "tests.zoo.group", str(folder), layout, *map(str, numbers)]
        environment = {
            **os.environ,
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "HPK_SHM_DIR": str(folder / "shm"),
            "PYTHONWARNINGS": "ignore",
        }
        (folder / "shm").mkdir(exist_ok=True)
        with self._log.open("a") as log:
            self.ranks = [
                warm.Forked(
                    words,
                    {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    imported=IMPORTED,
                    descriptors=[log.fileno(), log.fileno()],
                    cwd=str(ROOT),
                )
                for rank in range(world)
            ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """What the ranks tell, until they are through; of a case in which one of them ends so, or none goes on, too."""
        begun, since, most = None, time.monotonic(), CASE_SECONDS
        part = "program"
        outcome: dict[str, str] = {}
        while True:
            over = any(rank.poll() is not None for rank in self.ranks)
            for row in self._new_rows():
                since = time.monotonic()
                if "begin" in row:
                    begun, part, outcome, most = row["begin"], "program", {}, CASE_SECONDS
                elif "part" in row:
                    part, outcome = row["part"], row["outcome"]
                elif "unlike" in row:
                    outcome, most = row["unlike"], UNLIKE_SECONDS
                else:
                    begun = None
                    yield row
            if over or time.monotonic() - since > most:
                break
            self.ranks[0].has_ended_within(0.1)
        if begun is not None:
            codes = [rank.poll() for rank in self.ranks]
            what = "no end" if not over else f"crash: exit codes {codes}"
            yield {"number": begun, "outcome": outcome if most == UNLIKE_SECONDS else {**outcome, part: what}}
        self.end()

    def _new_rows(self) -> list[dict[str, Any]]:
        if not self._rows.exists():
            return []
        with self._rows.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def tried(folder: Path, layout: str, cases: dict[int, Case]) -> Iterator[dict[str, Any]]:
    waiting = list(cases)
    while waiting:
        before = len(waiting)
        for row in Group(folder, layout, waiting).rows():
            number = row["number"]
            waiting = [each for each in waiting if each > number]
            times = {name: row.get(name) for name in ("seconds", "processor")}
            yield {"case": cases[number].name, "layout": layout, **times, **row["outcome"]}
        if len(waiting) == before:
            log = folder / f"log-{layout.replace(' ', '')}"
            raise SystemExit(f"no rank began a case of {layout}: {log.read_text()[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROOT / "build" / "zoo.jsonl")
    parser.add_argument("--table", type=Path, help="Markdown: what came of it, by package")
    parser.add_argument("--layout", choices=LAYOUTS)
    parser.add_argument("--only", default="", help="cases with this word in their names")
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"  # torchao's own are of one version of torch
    rows = table.read(args.rows)
    known = {(row["case"], row["layout"]) for row in rows}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hpk-zoo-") as place, args.rows.open("a") as file:
        for layout in [args.layout] if args.layout else LAYOUTS:
            cases = {
                number: case
                for number, case in enumerate(every_case())
                if layout in case.layouts and args.only in case.name and (case.name, layout) not in known
            }
            for row in tried(Path(place), layout, cases) if cases else ():
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                print(f"{time.monotonic() - begun:5.0f} s  {table.line(row)}", flush=True)
    text = table.rendered(rows)
    print(text)
    if args.table is not None:
        table.put(args.table, text)
    return 1 if table.worse(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
