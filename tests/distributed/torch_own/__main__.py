"""`python -m tests.distributed.torch_own SOURCES`: torch's tests of checkpoints, with its storage and with ours.

SOURCES is a folder with torch's sources, of which `test/distributed/checkpoint` is read. It needs what those tests
import (`pip install expecttest parameterized`). Prints a row of the table in README.md, beside this file, for each
file, and then what did not pass, with the reason. Ends with 1 where a test that passes with torch's storage fails with
ours and is not named in `exceptions.py`, or is named there and passes, and where no test of all passes with torch's
storage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

from tests.distributed.torch_own import cpu
from tests.distributed.torch_own.exceptions import EXCEPTIONS

TESTS = "test/distributed/checkpoint"
REACHES_STORAGE = ("FileSystemWriter", "FsspecWriter", "checkpoint_id=")
MODES = ("theirs", "ours")
ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
FOLLOWS = re.compile("exited with error code|Connection closed by peer")
"""So it ends for who waits for the rank that failed."""

Outcomes = dict[str, str]
"""Test -> passed, or failed or skipped with the reason."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.torch_own", description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--only", default="", help="part of the path of the files to run")
    parser.add_argument("--json", type=Path, help="where to write what each test did")
    parser.add_argument("--output", type=Path, help="a folder for what pytest said of each file")
    parser.add_argument("--timeout", type=int, default=180, help="seconds for one test")
    given = parser.parse_args(words)
    files = sorted((given.sources / TESTS).rglob("test_*.py"))
    if not files:
        parser.error(f"no tests in {given.sources / TESTS}")
    found: dict[str, dict[str, Outcomes]] = {}
    for path in files:
        name = str(path.relative_to(given.sources / TESTS))
        if given.only in f"/{name}" and any(word in path.read_text() for word in REACHES_STORAGE):
            found[name] = {mode: _run(path, mode, given.timeout, given.output) for mode in MODES}
            print(_row(name, found[name]), flush=True)
            if given.json:  # each time: it takes a while, and what was found so far is worth having
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(_together(found))
    print("\n".join(line for name, modes in found.items() for line in _not_passed(name, modes)))
    wrong = [line for name, modes in found.items() for line in _wrong(name, modes)]
    if not any(_passed(modes["theirs"]) for modes in found.values()):
        wrong.append("no test passes with torch's own storage, so nothing is said of ours")
    print(
        "\n".join(wrong) or "each test that passes with torch's storage passes with ours, or is named with its reason"
    )
    return 1 if wrong else 0


def _run(path: Path, mode: str, timeout: int, kept: Path | None) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, path.name)
        made.write_text(cpu.for_cpu(path.read_text(), mode))
        report = Path(folder, "report.xml")
        repository = str(Path(__file__).parents[3])
        env = {
            **os.environ,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")]),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(timeout),
        }
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-c",
            os.devnull,
            "--rootdir",
            folder,
            "-p",
            "no:cacheprovider",
            f"--timeout={timeout + 30}",
            f"--junitxml={report}",
            str(made),
        ]
        with open(Path(folder, "output"), "w+") as output:
            subprocess.run(
                pytest,
                env=env,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            output.seek(0)
            said = output.read()
            if kept:
                Path(kept, f"{path.stem}.{mode}.log").write_text(said)
        if not report.exists():  # pytest itself was ended: by a fault, or by the limit of a test that hangs in C
            return {"(the whole file)": f"failed: pytest made no report: {said[-200:]!r}"}
        return {
            f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}": _outcome(case)
            for case in xml.parse(report).iter("testcase")
        }


def _outcome(case: xml.Element) -> str:
    for word, names in (("failed", ("failure", "error")), ("skipped", ("skipped",))):
        for name in names:
            if (found := case.find(name)) is not None:
                return f"{word}: {_last_line(found)}"
    return "passed"


def _last_line(found: xml.Element) -> str:
    """What was raised: where ranks are processes of their own, by the last of them that said so."""
    text = f"{found.get('message') or ''}\n{found.text or ''}"
    lines = [line.removeprefix("E ").strip() for line in text.splitlines()]
    raised = [line for line in lines if ERROR.match(line) and not FOLLOWS.search(line)]
    return (raised or [line for line in lines if line] or [""])[-1][:200]


def _passed(outcomes: Outcomes) -> int:
    return sum(what == "passed" for what in outcomes.values())


def _row(name: str, modes: dict[str, Outcomes]) -> str:
    named = sum((name, test) in EXCEPTIONS for test in modes["theirs"])
    counts = " | ".join(str(_passed(modes[mode])) for mode in MODES)
    return f"| `{name}` | {len(modes['theirs'])} | {counts} | {named or ''} |"


def _together(found: dict[str, dict[str, Outcomes]]) -> str:
    sums = [sum(len(modes["theirs"]) for modes in found.values())]
    sums += [sum(_passed(modes[mode]) for modes in found.values()) for mode in MODES]
    return f"| together, {len(found)} files | {' | '.join(map(str, sums))} | |"


def _not_passed(name: str, modes: dict[str, Outcomes]) -> list[str]:
    tests = sorted({*modes["theirs"], *modes["ours"]})
    said = [(test, *(modes[mode].get(test, "not run") for mode in MODES)) for test in tests]
    return [
        f"{name} {test}\n  torch's: {theirs}\n  ours: {ours}{_named(name, test)}"
        for test, theirs, ours in said
        if not theirs == ours == "passed"
    ]


def _named(name: str, test: str) -> str:
    reason = EXCEPTIONS.get((name, test))
    return f"\n  it {reason}" if reason else ""


def _wrong(name: str, modes: dict[str, Outcomes]) -> list[str]:
    wrong = []
    for test, outcome in modes["theirs"].items():
        ours = modes["ours"].get(test, "not run")
        named = (name, test) in EXCEPTIONS
        if outcome == "passed" and ours != "passed" and not named:
            wrong.append(f"{name} {test}: {ours} with ours")
        elif named and ours == "passed":
            wrong.append(f"{name} {test}: passes, and is named as an exception")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
