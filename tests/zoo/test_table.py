"""The zoo's own tests: a case is tried, and what is worse than torch's own loading is not counted as restored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.zoo import table
from tests.zoo.cases_optimizers import optimized
from tests.zoo.group import SAME, Trial
from tests.zoo.training import Case, Layout


class Counting(torch.optim.SGD):
    """A rate that depends on what no state has."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.taken
        return super().step(closure)


def tried(kind: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (folder / "shm").mkdir()
    monkeypatch.setenv("HPK_SHM_DIR", str(folder / "shm"))
    case = Case("torch", kind.__name__, optimized(lambda model: kind(model.parameters(), lr=0.01)))
    return Trial(case, Layout("1"), folder).run()


def test_a_case_is_compared_with_torchs_own_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(torch.optim.AdamW, tmp_path, monkeypatch) == {"program": SAME, "state_dict": SAME, "ours": SAME}


def test_what_no_state_has_comes_back_from_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(Counting, tmp_path, monkeypatch)
    assert found["state_dict"].startswith("differs: losses") and found["ours"].startswith("differs: losses")


def test_the_table_names_what_is_refused_and_what_is_worse(tmp_path: Path) -> None:
    outcomes = {
        "a: good": {"state_dict": SAME, "ours": SAME},
        "a: hard": {"state_dict": SAME, "ours": "refused: StateNotSerializable: state at x"},
        "a: wrong": {"state_dict": SAME, "ours": "differs: losses from step 2 on"},
        "a: lost": {"state_dict": "differs: x", "ours": "differs: x"},
    }
    rows = [{"case": name, "layout": "1", "program": SAME, **outcome} for name, outcome in outcomes.items()]
    assert [row["case"] for row in table.worse(rows)] == ["a: hard", "a: wrong"]
    assert table.rendered(rows).splitlines()[-1] == "| a | 1 | 4 | 3 | 1 | hard | wrong |"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.put(page, "new")
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"


def test_what_the_zoo_installs_has_versions_and_digests() -> None:
    here = Path(__file__).parent
    (group,) = re.findall(r"(?ms)^zoo = \[(.*?)\]", (here.parents[1] / "pyproject.toml").read_text())
    named = {name.replace("_", "-") for name in re.findall(r'"([A-Za-z_-]+)[<>=]', group)}
    blocks = re.split(r"(?m)^(?=[A-Za-z])", (here / "packages.txt").read_text())[1:]
    assert {block.partition("==")[0] for block in blocks if "--hash=sha256:" in block} == named
