"""ElasticLoader beside mosaicml-streaming, litdata, webdataset and HF datasets, unattended: a row for each loader in
each cell of data_cells.py, appended to a file; started again it goes on behind the rows that are there.

    python lab/programs/rivals/data_rows.py --install --prepare  # once: the rivals' packages, the corpora, their copies
    python lab/programs/rivals/data_rows.py --minutes 40         # on a machine on which nothing else runs
    python lab/programs/rivals/data_rows.py --table              # what is there so far, as a table

A loader reads the corpus once to prove that it reads all of it (count, bytes, check sums of decoded samples) and for
its memory; then all take turns, and the figures are medians. One that took more than three times the processor time of
the fastest keeps the figures of that first pass. Each pass is a process of its own, forked from one that has imported
what the loader needs and done nothing yet.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_cells import CELLS, CORPORA, Cell, Corpus, shrink_corpus, write_corpus
from data_loaders import BUCKET, KEY, KIT_LOADER, LOADERS, SECRET, Loader, Source
from data_pass import descendant_pids
from data_table import format_data_table

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
LONGEST = 180.0
"""Seconds of one pass."""
PSS_EVERY = 0.05
TIMED = ("samples", "bytes", "numbers")
"""What also a pass adds up whose time is taken; check sums would be a part of it."""

PACKAGES = (
    *("litdata==0.2.76", "obstore==0.12.1", "tifffile==2026.3.3"),
    *("mosaicml-streaming==0.13.0", "Brotli==1.2.1", "python-snappy==0.7.3", "cramjam==2.14.0", "zstd==1.5.7.2"),
    *("catalogue==2.0.10", "webdataset==1.0.2", "braceexpand==0.1.7"),
)
"""Without what they need besides and the project's environment has: torch, numpy, pyarrow, transformers, datasets."""
STUBS = {
    "torchvision/__init__.py": "",
    "torchvision/datasets/__init__.py": "class VisionDataset: ...\n",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "to_tensor = None\n",
}
"""mosaicml-streaming imports it for data sets of images that nobody uses here, and one for torch's CUDA does not load
beside torch's CPU package."""


def install_rival_packages(site: Path) -> None:
    """The rivals' packages, into a folder of their own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target"]
    subprocess.run([*pip, str(site), "--no-deps", *PACKAGES], check=True)
    import fsspec

    # For HF's streams alone: it brings another botocore.
    subprocess.run([*pip, str(site / "s3fs"), f"s3fs=={fsspec.__version__}"], check=True)
    for path, text in STUBS.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


class Workspace:
    """The folder with corpora, copies and packages."""

    def __init__(self, folder: Path, site: Path, part: float) -> None:
        self.folder, self.site, self.part = folder, site, part
        self._corpora = folder / "corpora"
        if part != 1:
            self._corpora = folder / f"corpora-{part:g}"

    def scaled_corpus(self, name: str) -> Corpus:
        """As large as it is here."""
        return shrink_corpus(CORPORA[name], self.part)

    def loader_source(self, name: str, kind: str, medium: str) -> Source:
        """Where a loader reads it."""
        files = sorted(glob.glob(str(self._corpora / name / f"*.{CORPORA[name].format}")))
        local = str(self._corpora / f"{name}-{kind}")
        if medium != "s3":
            return Source(files, local, local)
        prefix = f"s3://{BUCKET}/{self._corpora.name}"
        return Source([f"{prefix}/{name}/{os.path.basename(path)}" for path in files], f"{prefix}/{name}-{kind}", local)

    def read_corpus_facts(self, name: str) -> dict[str, Any]:
        """What a loader that reads all of it finds."""
        facts: dict[str, Any] = json.loads((self._corpora / f"{name}.json").read_text())
        return facts

    def write_corpus_once(self, name: str) -> None:
        """The corpus itself, once."""
        noted = self._corpora / f"{name}.json"
        if noted.exists():
            return
        shutil.rmtree(self._corpora / name, ignore_errors=True)
        (self._corpora / name).mkdir(parents=True)
        facts = write_corpus(self.scaled_corpus(name), str(self._corpora / name))
        noted.write_text(json.dumps(facts))

    def prepare_copy_once(self, name: str, kind: str, medium: str, resident: Resident) -> None:
        """A loader's copy of it, and what S3 is to have, once. Raises Failed."""
        done = self._corpora / f"{name}-{kind}.local.done"
        if medium == "s3":
            done = self._corpora / f"{name}-{kind}.s3.done"
        if done.exists():
            return
        loader, source = LOADERS[kind], self.loader_source(name, kind, medium)
        if medium == "s3":
            self.prepare_copy_once(name, kind, "warm", resident)
            self._upload_once(self._corpora / name)
            if loader.copies:
                self._upload_once(Path(source.local))
        else:
            shutil.rmtree(source.local, ignore_errors=True)
            os.makedirs(source.local)
        if medium != "s3" or kind == KIT_LOADER:
            resident.run_request(kind="prepare", corpus=self.scaled_corpus(name)._asdict(), source=source._asdict())
        os.sync()
        done.touch()

    def _upload_once(self, folder: Path) -> None:
        done = folder.parent / f"{folder.name}.uploaded"
        if done.exists():
            return
        import boto3

        client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
        for path in sorted(folder.iterdir()):
            if path.is_file():
                client.upload_file(str(path), BUCKET, f"{self._corpora.name}/{folder.name}/{path.name}")
        done.touch()

    def drop_page_cache(self, name: str, kind: str) -> None:
        """Have the kernel drop the cached pages of a corpus and of a loader's copy."""
        for root in (self._corpora / name, self._corpora / f"{name}-{kind}"):
            for path in root.rglob("*"):
                if not path.is_file():
                    continue
                handle = os.open(path, os.O_RDONLY)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)


class Failed(Exception):
    """A loader did not do it; its text is the row's note."""


class Resident:
    """A process that has imported a loader, and forks for each pass."""

    def __init__(self, kind: str, site: Path, log: Path) -> None:
        loader = LOADERS[kind]
        self._scratch = tempfile.mkdtemp(prefix="hpk-rivals-")
        paths = [str(REPOSITORY)]
        if kind != KIT_LOADER:
            if loader.extra:
                paths.append(str(site / loader.extra))
            paths.append(str(site))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": self._scratch, "PYTHONWARNINGS": "ignore"}
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}
        env |= {"HF_HOME": os.path.join(self._scratch, "hf"), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, str(HERE / "data_pass.py"), kind]
        self._errors = open(log, "ab")  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.version = self._read_message(600.0)["version"]

    def run_request(self, *, measures_memory: bool = False, **request: Any) -> dict[str, Any]:
        """A pass; `watched`: with the memory at its peak. Raises Failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pid = self._read_message(30.0)["pid"]
        peak = None
        if measures_memory:
            peak = Peak(self._process.pid)
        memory: dict[str, Any] = {}
        longest = 1800.0
        if request["kind"] == "pass":
            longest = LONGEST
        try:
            response = self._read_message(longest, pid)
            if "ended" not in response:
                self._read_message(60.0)
        finally:
            if peak is not None:
                memory = peak.stop_and_report()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what some leave running
            for path in Path(self._scratch).iterdir():
                shutil.rmtree(path, ignore_errors=True)
        if "ended" in response:
            raise Failed("killed: it took too long, or too much memory")
        if "error" in response:
            raise Failed(response["error"])
        return {**response, **memory}

    def _read_message(self, seconds: float, pid: int = 0) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Timer(seconds, os.killpg, (pid, signal.SIGKILL))
        if not pid:
            late = threading.Timer(seconds, self._process.kill)
        late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            raise Failed("the process that imports it has ended: see the log")
        message: dict[str, Any] = json.loads(line)
        return message

    def end_process(self) -> None:
        """End the process and remove its scratch folder."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Peak:
    """The most memory that a process and all below it have at once: their shares of what they share are added."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most, self._most_without_files = pid, 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_memory, daemon=True)
        self._thread.start()

    def stop_and_report(self) -> dict[str, int]:
        """In MiB: all, and without what files hold."""
        self._ended.set()
        self._thread.join()
        return {"pss": self._most >> 10, "pss_without_files": self._most_without_files >> 10}

    def _sample_memory(self) -> None:
        has_ended = False
        while not has_ended:  # once at least: a small corpus is read in less time
            samples = [memory_shares(pid) for pid in (self._pid, *descendant_pids(self._pid))]
            self._most = max(self._most, sum(share["Pss"] for share in samples))
            self._most_without_files = max(
                self._most_without_files, sum(share["Pss"] - share["Pss_File"] for share in samples)
            )
            has_ended = self._ended.wait(PSS_EVERY)


def memory_shares(pid: int) -> dict[str, int]:
    """KiB."""
    totals = {"Pss": 0, "Pss_File": 0}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return totals
    for line in lines:
        name, _, value = line.partition(":")
        if name in totals:
            totals[name] = int(value.split()[0])
    return totals


def start_s3_server(folder: Path) -> subprocess.Popen[str]:
    """The rehearsal's S3 on loopback, in a process of its own; its URL goes into this one's environment."""
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_DEFAULT_REGION="us-east-1")
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    os.environ.pop("AWS_PROFILE", None)
    command = [sys.executable, str(HERE / "data_pass.py"), "serve", str(folder / "s3")]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    os.environ.update(AWS_ENDPOINT_URL=url, S3_ENDPOINT_URL=url)
    return server


class Bench:
    """All cells, one after another."""

    def __init__(
        self, workspace: Workspace, kinds: list[str], passes: int, epochs: int, slow: float, rows: Path
    ) -> None:
        self.workspace, self.passes, self.epochs, self.slow, self.rows = workspace, passes, epochs, slow, rows
        self.residents: dict[str, Resident] = {}
        self.missing: dict[str, str] = {}
        for kind in kinds:
            try:
                self.residents[kind] = Resident(kind, workspace.site, workspace.folder / f"{kind}.log")
            except Failed as err:
                self.missing[kind] = f"not installed: {err}"
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
        self._about = {"commit": commit.stdout.strip(), "python": platform.python_version(), "torch": version("torch")}

    def prepare_cell(self, cell: Cell) -> dict[str, str]:
        """Make the corpus and copies of a cell; returns kind -> reason why a loader takes no part."""
        notes = dict(self.missing)
        self.workspace.write_corpus_once(cell.corpus)
        for kind, resident in self.residents.items():
            notes[kind] = LOADERS[kind].refusal(self.workspace.scaled_corpus(cell.corpus), cell.place)
            if notes[kind]:
                continue
            try:
                self.workspace.prepare_copy_once(cell.corpus, kind, cell.place, resident)
            except Failed as err:
                notes[kind] = f"no copy: {err}"
        return {kind: note for kind, note in notes.items() if note}

    def measure_cell(self, cell: Cell) -> None:
        """A row for each loader."""
        notes = self.prepare_cell(cell)
        first: dict[str, dict[str, Any]] = {}
        for kind in self.residents:
            if kind not in notes:
                self._run_pass(notes, first, cell, kind)
        fastest = min((figures["processor"] for figures in first.values()), default=0.0)
        timed: dict[str, list[dict[str, Any]]] = {
            kind: []
            for kind, figures in first.items()
            if kind == KIT_LOADER or figures["processor"] <= self.slow * fastest
        }
        turns = list(timed)
        for number in range(self.passes):
            for kind in turns[number % len(turns) :] + turns[: number % len(turns)]:
                if kind not in notes:
                    self._run_pass(notes, timed[kind], cell, kind)
        for kind in (*self.residents, *self.missing):
            self._append_row(cell, kind, notes.get(kind, ""), first.get(kind), timed.get(kind) or [])

    def _run_pass(self, notes: dict[str, str], figures: Any, cell: Cell, kind: str) -> None:
        if cell.place == "cold":
            self.workspace.drop_page_cache(cell.corpus, kind)
        proof = isinstance(figures, dict)
        request = {
            "kind": "pass",
            "corpus": self.workspace.scaled_corpus(cell.corpus)._asdict(),
            "source": self.workspace.loader_source(cell.corpus, kind, cell.place)._asdict(),
            "workers": cell.workers,
            "proof": proof,
            "epochs": self.epochs,
        }
        try:
            pass_figures = self.residents[kind].run_request(measures_memory=proof, **request)
        except Failed as err:
            notes[kind] = str(err)
            return
        if proof:
            figures[kind] = pass_figures
        else:
            figures.append(pass_figures)

    def _append_row(
        self, cell: Cell, kind: str, note: str, first: dict[str, Any] | None, timed: list[dict[str, Any]]
    ) -> None:
        loader: Loader = LOADERS[kind]
        samples = self.workspace.scaled_corpus(cell.corpus).samples
        row: dict[str, Any] = {**cell._asdict(), "what": CORPORA[cell.corpus].what, "kind": kind, "loader": loader.name}
        row |= {"version": getattr(self.residents.get(kind), "version", ""), "part": self.workspace.part, "note": note}
        row["epochs"] = self.epochs
        if first is not None and not note:
            figures = timed or [first]
            facts = self.workspace.read_corpus_facts(cell.corpus)
            row["passes"] = len(timed)
            read = [(first, (*TIMED, "sum")), *((pass_figures, TIMED) for pass_figures in timed)]
            wrong = [
                pass_figures["samples"] for pass_figures, names in read if has_other_samples(pass_figures, facts, names)
            ]
            row["right"] = not wrong
            if wrong:
                row["note"] = f"{wrong[0]} of {facts['samples']} samples, or other ones"
            row |= {name: first[name] for name in ("pss", "pss_without_files")}
            row["us"] = statistics.median(pass_figures["processor"] for pass_figures in figures) / samples * 1e6
            row["us_behind_first"] = (
                statistics.median(pass_figures["behind_first"] for pass_figures in figures) / samples * 1e6
            )
            row["first"] = statistics.median(pass_figures["first"] for pass_figures in figures)
            row["seconds"] = statistics.median(pass_figures["seconds"] for pass_figures in figures)
            row["all_us"] = [pass_figures["processor"] / samples * 1e6 for pass_figures in figures]
        row |= {"cores": os.cpu_count(), "load": os.getloadavg()[0], "at": time.strftime("%Y-%m-%dT%H:%M:%S")}
        with open(self.rows, "a") as out:
            out.write(json.dumps({**row, **self._about}) + "\n")

    def end_processes(self) -> None:
        """End the processes of all loaders."""
        for resident in self.residents.values():
            resident.end_process()


def has_other_samples(figures: dict[str, Any], facts: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Whether other samples were read than there are."""
    return any(figures[name] != facts[name] for name in names)


def chosen_cells(args: argparse.Namespace) -> list[Cell]:
    """The cells that the options name."""
    return [
        cell
        for cell in CELLS
        if cell.corpus in args.corpora and cell.place in args.places and cell.workers in args.workers
    ]


def read_measured_cells(rows: Path, part: float) -> set[Cell]:
    """What the file has."""
    if not rows.exists():
        return set()
    records = (json.loads(line) for line in rows.read_text().splitlines())
    return {Cell(row["corpus"], row["place"], row["workers"]) for row in records if row["part"] == part}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/rivals"), help="corpora, copies, S3: 6 GB")
    parser.add_argument("--site", type=Path, help="the rivals' packages (default: FOLDER/site)")
    parser.add_argument("--rows", type=Path, help="the file of rows (default: FOLDER/rows.jsonl)")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--prepare", action="store_true", help="corpora and copies only")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--minutes", type=float, default=40.0, help="after which no other cell is begun")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1, help="of a pass, the last of which gives the figures")
    parser.add_argument("--slow", type=float, default=3.0, help="times the fastest, from which on one pass is enough")
    parser.add_argument("--part", type=float, default=1.0, help="of each corpus, to try it")
    parser.add_argument("--loaders", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--corpora", nargs="*", default=list(CORPORA), choices=list(CORPORA))
    parser.add_argument("--places", nargs="*", default=["warm", "cold", "s3"], choices=["warm", "cold", "s3"])
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = args.rows or folder / "rows.jsonl"
    if args.table:
        print(format_data_table([json.loads(line) for line in rows.read_text().splitlines()], KIT_LOADER))
        return
    site = (args.site or folder / "site").resolve()
    if args.install:
        install_rival_packages(site)
    until = time.monotonic() + 60 * args.minutes
    server = start_s3_server(folder)
    bench = Bench(Workspace(folder, site, args.part), args.loaders, args.passes, args.epochs, args.slow, rows)
    try:
        cells = chosen_cells(args)
        done = set()
        if not args.prepare:
            done = read_measured_cells(rows, args.part)
        for cell in cells:
            if cell in done:
                continue
            if not args.prepare and time.monotonic() > until:
                print("the time is over: start it again for the rest", flush=True)
                return
            started_at = time.monotonic()
            if args.prepare:
                bench.prepare_cell(cell)
            else:
                bench.measure_cell(cell)
            print(
                f"{cell.corpus}, {cell.place}, {cell.workers} workers: {time.monotonic() - started_at:.0f} s",
                flush=True,
            )
    finally:
        bench.end_processes()
        server.terminate()
        server.wait()
    if not args.prepare:
        print(format_data_table([json.loads(line) for line in rows.read_text().splitlines()], KIT_LOADER))


if __name__ == "__main__":
    main()
