"""Every example of a public docstring is compiled, and run: as it stands, after what its first sentence introduces.

Those that start a checkpoint agent are run by `make test-all` alone; all others share one process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, List, Mapping

import pytest

from docs_build.blocks import ROOT
from tests.docs.public_docstrings import Example, examples
from tests.docs.python_blocks import check_imports
from tests.support import warm

pytest.importorskip("torch")

EXAMPLES = examples()

INTRODUCED: Dict[str, str] = {
    "`model`": "import torch\nmodel = torch.nn.Linear(4, 2)",
    "`root`": """
from hyperpod_kit.checkpoint import Manager, State
root = "/tmp/saved"
with Manager(root) as saving_manager:
    saved_state = State(model, extra={"tokens": 4096})
    saving_manager.save(99, saved_state, on_busy="wait", metrics={"val_loss": 2.5})
""",
    "`state`": 'from hyperpod_kit.checkpoint import State\nstate = State(model, extra={"tokens": 0})',
    "`manager`": """
from hyperpod_kit.checkpoint import Manager
manager = Manager("/tmp/run", every=100, overlap=True)
""",
    "has saved before": """
manager.save(99, State(model), on_busy="wait")
manager.close()
manager = Manager("/tmp/run", every=100)
""",
    "that has restored": "manager.restore(state)",
    "`step`": "step = 0",
    "`handle`": "handle = manager.save(0, state)",
    "`batches`": "batches = torch.utils.data.DataLoader(list(range(8)), shuffle=True)",
    "`index`": 'from hyperpod_kit.data import SampleIndex\nindex = SampleIndex.open("/tmp/index")',
    "`dataset`": "from hyperpod_kit.data import IndexedDataset\ndataset = IndexedDataset(index)",
    "`encode`": 'encode = lambda sample: list(sample["text"].encode())',
    "`lengths`": 'from hyperpod_kit.data import lengths_of\nlengths = lengths_of(dataset, encode, "bytes, v1")',
    "`loader`": "from hyperpod_kit.data import ElasticLoader\nloader = ElasticLoader(dataset, batch_size=4)",
    "`prefix`": 'prefix = "/tmp/tokens"',
    "`code`": "code = [f'value = {number}' for number in range(70)]",
    "`prose`": "prose = [f'Value {number}.' for number in range(130)]",
    "`train_step`": "train_step = lambda *batch: 0.5",
    "`evaluate`": "evaluate = lambda: 0.5",
    "`is_due`": "is_due = lambda step: step == 200",
}
"""What a sentence before an example may introduce, in the order in which it is made."""

NEEDS = {
    "`root`": ["`model`"],
    "`state`": ["`model`"],
    "has saved before": ["`state`"],
    "`handle`": ["`manager`", "`state`"],
    "`batches`": ["`model`"],
    "`dataset`": ["`index`"],
    "`lengths`": ["`dataset`", "`encode`"],
    "`loader`": ["`dataset`"],
}

END = {"`manager`": "manager.close()", "`handle`": "manager.close()"}
"""What ends it again."""


def introduced(sentence: str) -> List[str]:
    """What a sentence introduces, and what that needs, in the order in which it is made."""
    phrases = [phrase for phrase in INTRODUCED if phrase in sentence]
    for phrase in phrases:
        phrases += [need for need in NEEDS.get(phrase, []) if need not in phrases]
    return [phrase for phrase in INTRODUCED if phrase in phrases]


def program(example: Example) -> str:
    """The example as a whole program."""
    phrases = introduced(example.sentence)
    before = [INTRODUCED[phrase] for phrase in phrases]
    after = {END[phrase]: None for phrase in phrases if phrase in END}
    return "\n".join([*before, example.block.text, *after])


def starts_an_agent(example: Example) -> bool:
    return "Manager(" in program(example)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory in the place of /tmp, with the data that examples read."""
    from hyperpod_kit.data.index.build import build_index
    from hyperpod_kit.data.tokens import megatron

    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [f'{{"text": "Document {number} says nothing of interest."}}\n' for number in range(64)]
    (corpus / "documents.jsonl").write_text("".join(lines))
    build_index([str(corpus)], str(tmp_path / "index"))
    megatron.write_documents(str(tmp_path / "tokens"), [list(range(50))] * 20, 256)
    (tmp_path / "shm").mkdir()
    return tmp_path


def run(programs: Mapping[str, str], directory: Path) -> None:
    """Run programs one after another in one process, by the place where each stands. Raises AssertionError."""
    lines = [
        f"exec(compile({text!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})" for name, text in programs.items()
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HPK_", "SLURM_"))},
        "HPK_SHM_DIR": str(directory / "shm"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    text = "\n".join(lines).replace("/tmp/", f"{directory}/")
    process = warm.run(["-c", text], environment, cwd=directory, both=True)
    assert process.returncode == 0, process.stdout


EACH = pytest.mark.parametrize("example", [pytest.param(example, id=example.name) for example in EXAMPLES])
WITH_AN_AGENT = [example for example in EXAMPLES if starts_an_agent(example)]


@EACH
def test_an_example_compiles_and_what_it_imports_exists(example: Example) -> None:
    check_imports(example.block)


@EACH
def test_a_name_that_an_example_introduces_is_known_here(example: Example) -> None:
    unknown = [name for name in re.findall(r"`[a-z_]+`", example.sentence) if name not in INTRODUCED]
    assert unknown == [], f"{example.block.place}: add what it is to INTRODUCED"


def test_examples_without_an_agent_run(directory: Path) -> None:
    chosen = [example for example in EXAMPLES if not starts_an_agent(example)]
    assert len(chosen) > len(EXAMPLES) // 3
    run({example.block.place: program(example) for example in chosen}, directory)


@pytest.mark.full
@pytest.mark.parametrize("example", [pytest.param(example, id=example.name) for example in WITH_AN_AGENT])
def test_an_example_with_an_agent_runs(example: Example, directory: Path) -> None:
    run({example.block.place: program(example)}, directory)


def test_an_example_that_fails_is_noticed(directory: Path) -> None:
    with pytest.raises(AssertionError, match=r"module\.py"):
        run({"module.py:7": "assert 1 == 2"}, directory)
