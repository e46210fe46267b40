"""Corpora of exact sizes, small files put together and taken apart byte for byte, documents as Megatron's files."""

from __future__ import annotations

import filecmp
import json
import os
import pickle
import random
import struct

import numpy as np
import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.data import ElasticLoader, IndexedDataset, PackedDataset, ShuffledOrder
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.tokens.megatron import MegatronTokens, write_documents
from hyperpod_kit.errors import ChangedFile, DataError, DataUnavailable


def test_records_of_a_made_corpus_make_batches(tmp_path):
    """Each has the keys of the others, also the last of a file, which fills it up."""
    assert run_command_line(["data", "make-corpus", str(tmp_path / "c"), "--files", "5", "--kib", "13"]) == 0
    data = IndexedDataset(build_index([str(tmp_path / "c")]).index)
    keys = {tuple(data[number]) for number in range(len(data))}
    assert keys == {("id", "title", "text")}
    assert sum(len(batch["id"]) for batch in ElasticLoader(data, 8)) >= len(data)


@pytest.mark.parametrize("seed", range(12))
def test_a_corpus_has_its_size_and_is_jsonl(tmp_path, seed):
    assert (
        run_command_line(
            ["data", "make-corpus", str(tmp_path / "c"), "--files", "3", "--kib", "9", "--seed", str(seed)]
        )
        == 0
    )
    for path in (tmp_path / "c").iterdir():
        assert path.stat().st_size == 9 * 1024
        assert all(json.loads(line)["text"] for line in path.read_text().splitlines())


def test_a_cap_is_kept(tmp_path, capsys):
    assert (
        run_command_line(["data", "make-corpus", str(tmp_path / "c"), "--files", "3", "--kib", "1024", "--cap", "2"])
        == 2
    )
    assert "above the cap of 2097152" in capsys.readouterr().err and not (tmp_path / "c").exists()


@pytest.fixture
def small(tmp_path):
    dice = random.Random(0)
    for number in range(120):
        path = tmp_path / "small" / f"d{number % 7}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(dice.randrange(40_000)))
    (tmp_path / "small" / "d0" / "empty.png").write_bytes(b"")
    return tmp_path / "small"


def test_small_files_and_back(small, tmp_path, capsys):
    assert run_command_line(["data", "merge", str(small), str(tmp_path / "tars"), "--mib", "1", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["files"] == 121 and 2 <= made["tars"] <= 5
    assert run_command_line(["data", "split", str(tmp_path / "tars"), str(tmp_path / "back")]) == 0
    for folder in small.iterdir():
        names = [path.name for path in folder.iterdir()]
        assert filecmp.cmpfiles(folder, tmp_path / "back" / folder.name, names, shallow=False) == (names, [], [])
    data = IndexedDataset(build_index([str(tmp_path / "tars")]).index)
    assert len(data) == 121 and data[5]["png"] == (small / f"{data[5]['__key__']}.png").read_bytes()


def test_what_was_damaged_is_not_split(small, tmp_path, capsys):
    assert run_command_line(["data", "merge", str(small), str(tmp_path / "tars"), "--mib", "1"]) == 0
    assert run_command_line(["data", "merge", str(small), str(tmp_path / "tars"), "--mib", "1"]) == 1
    assert "has merged files" in capsys.readouterr().err
    path = tmp_path / "tars" / "000001.tar"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert run_command_line(["data", "split", str(tmp_path / "tars"), str(tmp_path / "back")]) == 1
    (tmp_path / "tars" / "merged.json").unlink()
    assert run_command_line(["data", "split", str(tmp_path / "tars"), str(tmp_path / "back")]) == 1
    assert "not finish" in capsys.readouterr().err


def test_megatrons_files_by_its_own_layout(tmp_path):
    """The bytes as Megatron-LM's indexed_dataset.py defines them."""
    prefix = str(tmp_path / "c")
    assert write_documents(prefix, [[1, 2, 3], [], [65_000]], 65_100) == (3, 4)
    raw = (tmp_path / "c.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00" and struct.unpack("<QBQQ", raw[9:34]) == (1, 8, 3, 4)
    assert np.frombuffer(raw, "<i4", 3, 34).tolist() == [3, 0, 1]
    assert np.frombuffer(raw, "<i8", 3, 46).tolist() == [0, 6, 6]
    assert np.frombuffer(raw, "<i8", 4, 70).tolist() == [0, 1, 2, 3] and len(raw) == 102
    assert (tmp_path / "c.bin").read_bytes() == np.array([1, 2, 3, 65_000], "<u2").tobytes()
    found = MegatronTokens(prefix)
    assert [found[n].tolist() for n in range(3)] == [[1, 2, 3], [], [65_000]]
    write_documents(prefix, [[70_000]], 100_000)
    assert MegatronTokens(prefix)[0].tolist() == [70_000]
    with pytest.raises(DataError, match="expected below 10"):
        write_documents(prefix, [[10]], 10)


def test_windows_out_of_megatrons_files(tmp_path):
    documents = [[n] * (n % 9) for n in range(200)]
    write_documents(str(tmp_path / "c"), documents, 300)
    tokens = MegatronTokens(str(tmp_path / "c"))
    order = ShuffledOrder(len(tokens), 3, tokens.block_for())
    packed = PackedDataset(tokens, None, tokens.lengths, window=10, order=order)
    found = [
        int(one) for batch in ElasticLoader(packed, 3, order=packed.windows, last="drop") for one in batch.flatten()
    ]
    wanted = [token for n in order.at(0, np.arange(200)).tolist() for token in documents[n]]
    assert found == wanted[: len(found)] and len(wanted) - len(found) < 40


def test_megatrons_files_are_read_as_other_files_are(tmp_path):
    """Across the repair of a mount, and not when they have changed: a mapping of them would end the trainer."""
    write_documents(str(tmp_path / "c"), [[n] * 30_000 for n in range(4)], 300)
    tokens, hasty = MegatronTokens(str(tmp_path / "c")), MegatronTokens(str(tmp_path / "c"), patience=0)
    assert [set(one.tolist()) for one in tokens.__getitems__([3, 0])] == [{3}, {0}]
    os.rename(tmp_path / "c.bin", tmp_path / "gone")
    with pytest.raises(DataUnavailable, match=r"c\.bin, at 180000: .*No such file"):
        pickle.loads(pickle.dumps(hasty))[3]
    os.rename(tmp_path / "gone", tmp_path / "c.bin")
    os.truncate(tmp_path / "c.bin", 60_001)
    with pytest.raises(ChangedFile, match="expected 240000 bytes"):
        tokens[2]


def test_what_is_no_data_set_of_megatrons_is_said(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        MegatronTokens(str(tmp_path / "c"))
    (tmp_path / "c.idx").write_bytes(b"something else" * 10)
    with pytest.raises(DataError, match="not a Megatron index"):
        MegatronTokens(str(tmp_path / "c"))
    write_documents(str(tmp_path / "c"), [[1, 2]], 10)
    (tmp_path / "c.bin").write_bytes(b"1")
    with pytest.raises(DataError, match="has 1 bytes, expected 4"):
        MegatronTokens(str(tmp_path / "c"))
    (tmp_path / "c.bin").unlink()
    with pytest.raises(DataError, match=r"no such file: .*c\.bin"):
        MegatronTokens(str(tmp_path / "c"))
    write_documents(str(tmp_path / "c"), [[1, 2], [3]], 10)
    index = bytearray((tmp_path / "c.idx").read_bytes())
    struct.pack_into("<q", index, 34 + 2 * 4 + 8, 1 << 40)  # where the second document begins
    (tmp_path / "c.idx").write_bytes(index)
    with pytest.raises(DataError, match="are outside"):
        MegatronTokens(str(tmp_path / "c"))


def test_tokenize_by_a_tokenizers_file(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    words = tokenizers.models.WordLevel({"<end>": 0, "<unk>": 1, "one": 2, "two": 3, "three": 4}, unk_token="<unk>")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "corpus").mkdir()
    lines = (json.dumps({"body": "one two " * (n % 5) + "three"}) + "\n" for n in range(1200))
    (tmp_path / "corpus" / "a.jsonl").write_text("".join(lines))
    words = ["data", "tokenize", str(tmp_path / "corpus"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    words += ["--out", str(tmp_path / "out" / "c"), "--processes", "2"]
    assert run_command_line([*words, "--field", "body", "--end", "<end>", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 1200
    found = MegatronTokens(str(tmp_path / "out" / "c"))
    assert [found[n].tolist() for n in (0, 1001)] == [[4, 0], [2, 3, 4, 0]]
    assert run_command_line(words) == 1 and "no text in 'text'" in capsys.readouterr().err
    assert run_command_line([*words, "--field", "body", "--end", "</s>"]) == 2
