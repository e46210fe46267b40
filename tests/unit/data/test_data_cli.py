"""`hyperpod-kit data`: what it says, what it exits with."""

from __future__ import annotations

import json
import os

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(10)))
    return folder


def test_index_show_and_verify(corpus, capsys):
    assert run_command_line(["data", "index", str(corpus), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["samples"], made["files"], made["read"], made["known"]) == (20, 2, 2, 0)
    assert run_command_line(["data", "index", str(corpus)]) == 0
    assert "20 samples in 2 files" in (said := capsys.readouterr().out) and "2 files were already indexed" in said
    assert run_command_line(["data", "show", made["index"]]) == 0
    assert "b.jsonl" in capsys.readouterr().out
    assert run_command_line(["data", "verify", made["index"], "--bytes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == []


def test_verify_finds_files_that_changed_even_with_their_time_kept(corpus, capsys):
    assert run_command_line(["data", "index", str(corpus)]) == 0
    index = str(corpus / ".hpk-index")
    path = corpus / "a.jsonl"
    then = path.stat()
    path.write_bytes(path.read_bytes().replace(b"3", b"4"))
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert run_command_line(["data", "verify", index]) == 0
    assert run_command_line(["data", "verify", index, "--bytes"]) == 1
    assert "expected digest" in capsys.readouterr().out
    (corpus / "b.jsonl").unlink()
    assert run_command_line(["data", "verify", index]) == 1
    assert "1 of 2 files" in capsys.readouterr().out


def test_bad_lines_raise_or_are_left_out_and_counted(corpus, capsys):
    (corpus / "c.jsonl").write_text('{"n": 1}\n{"n": \n\n   \n{"n": 2}')
    assert run_command_line(["data", "index", str(corpus), "--check"]) == 1
    assert "c.jsonl, at 9 (sample 1)" in capsys.readouterr().err
    assert run_command_line(["data", "index", str(corpus), "--check", "--on-bad", "skip"]) == 0
    assert "1 bad record was left out" in capsys.readouterr().out
    data = IndexedDataset(SampleIndex.open(corpus / ".hpk-index"))
    assert [data[n]["n"] for n in (20, 21)] == [1, 2] and len(data) == 22
    # Without --check the lines are there again: what was left out is not remembered as the file's.
    assert run_command_line(["data", "index", str(corpus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 23


def test_what_is_not_there_is_said(tmp_path, capsys):
    assert run_command_line(["data", "index", str(tmp_path / "none")]) == 3
    assert "no such file or directory" in capsys.readouterr().err
    assert run_command_line(["data", "show", str(tmp_path)]) == 3
    assert run_command_line(["data", "index", str(tmp_path), "--format", "csv"]) == 2
    assert run_command_line(["data", "nothing"]) == 2


def test_verify_ledger(corpus, tmp_path, capsys):
    assert run_command_line(["data", "index", str(corpus)]) == 0
    data = IndexedDataset(SampleIndex.open(corpus / ".hpk-index"))
    ledger = tmp_path / "ledger"
    loader = ElasticLoader(data, 3, ledger=ledger, launch="a", collate_fn=list)
    list(loader)
    next(iter(loader))  # to look at one is not to receive it
    for _ in loader:
        loader.trained()
        break
    capsys.readouterr()
    assert run_command_line(["data", "verify-ledger", str(ledger)]) == 0
    said = capsys.readouterr().out
    assert "epoch 0: every one of 20 samples exactly once" in said and "epoch 1: 3 of 20 samples so far" in said
    (path,) = ledger.iterdir()
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:2] + text[3:]) + "\n")
    assert run_command_line(["data", "verify-ledger", str(ledger)]) == 1
    assert "never" in capsys.readouterr().out
    assert run_command_line(["data", "verify-ledger", str(ledger), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["epochs"][0]["missing"]) == 3
    assert run_command_line(["data", "verify-ledger", str(tmp_path)]) == 3
