"""How well an order mixes is a figure, and data whose neighbours are alike is warned of."""

from __future__ import annotations

import gzip
import json
import random
import tarfile

import pytest

from hyperpod_kit.cli.main import run_command_line
from hyperpod_kit.data import SampleIndex, SequentialOrder, ShuffledOrder
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.mixing import Mixing, detect_fields_data_is_sorted_by, measure_mixing


@pytest.mark.parametrize(
    "order, share",
    [
        (ShuffledOrder(2_000_000, 1), (0.17, 0.23)),
        (ShuffledOrder(2_000_000, 1, block=256, lanes=480), (0.82, 0.9)),
        (ShuffledOrder(2_000_000, 1, block=1), (0.98, 1.02)),
        (SequentialOrder(2_000_000), (0.0, 0.01)),
        (ShuffledOrder(700, 1, block=1), (0.95, 1.05)),
        (ShuffledOrder(3, 1), (1.0, 1.0)),
    ],
)
def test_the_figure_is_that_of_parts_in_a_batch(order, share):
    found = measure_mixing(order)
    assert share[0] <= found.share_of_uniform <= share[1], found


def test_a_uniform_shuffle_has_what_chance_gives():
    rng = random.Random(1)
    parts = [len({number * 256 // 100_000 for number in rng.sample(range(100_000), 1024)}) for _ in range(20)]
    assert measure_mixing(ShuffledOrder(100_000)).uniform == pytest.approx(sum(parts) / len(parts), abs=1.5)
    assert Mixing(10, 16, 5.0, 10.0).share_of_uniform == 0.5


def corpus(folder, records):
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return build_index([str(folder)]).index


def test_a_field_that_neighbours_share_is_named(tmp_path):
    records = [{"id": n, "topic": f"t{n * 20 // 2000}", "same": True, "text": "x" * 80} for n in range(2000)]
    found = detect_fields_data_is_sorted_by(corpus(tmp_path / "sorted", records))
    assert [one.name for one in found] == ["'topic'"] and found[0].neighbours > 0.9 > 0.3 > found[0].others
    random.Random(1).shuffle(records)
    assert detect_fields_data_is_sorted_by(corpus(tmp_path / "shuffled", records)) == []


def test_so_are_directories(tmp_path):
    for name in "abcdefgh":
        (tmp_path / "files" / name).mkdir(parents=True)
        for number in range(60):
            (tmp_path / "files" / name / f"{number}.jpg").write_bytes(b"x")
    assert [one.name for one in detect_fields_data_is_sorted_by(build_index([str(tmp_path / "files")]).index)] == [
        "its directory"
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "files", "files", filter=lambda member: None if ".hpk" in member.name else member)
    made = build_index([str(tmp_path / "a.tar")], str(tmp_path / "index")).index
    assert [one.name for one in detect_fields_data_is_sorted_by(made)] == ["the directory in its tar"]


def test_the_commands_say_both(tmp_path, capsys):
    corpus(tmp_path / "sorted", [{"topic": f"t{n // 100}"} for n in range(2000)])
    for words in (["index", str(tmp_path / "sorted")], ["show", str(tmp_path / "sorted" / ".hpk-index")]):
        assert run_command_line(["data", *words]) == 0
        said = capsys.readouterr().out
        assert "mixing   a batch of 1,024 has samples from 256 of 256 parts of the data" in said
        assert "order    blocks of 6 samples, 384 side by side, by default" in said
        assert "warning: the data is sorted by 'topic': " in said
        assert "hint:" not in said, "it is small, and mixed well"
        assert run_command_line(["data", *words, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["block"], facts["lanes"]) == (6, 384)
        assert facts["mixing"]["batch"] == 1024 and facts["sorted_by"][0]["name"] == "'topic'"


def test_data_that_cannot_be_read_keeps_neither_back(tmp_path, capsys):
    corpus(tmp_path / "gone", [{"topic": n} for n in range(1000)])
    (tmp_path / "gone" / "a.jsonl").unlink()
    assert run_command_line(["data", "show", str(tmp_path / "gone" / ".hpk-index")]) == 0
    assert "unknown whether the data is sorted: " in capsys.readouterr().out


def test_more_lanes_are_advised_where_they_help(tmp_path, capsys, monkeypatch):
    """Of lines the default mixes well enough; of what is decompressed, each lane keeps a member in memory."""
    lines = "".join(f"{n}\n" for n in range(40_000)).encode()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.txt").write_bytes(lines)
    monkeypatch.setattr(SampleIndex, "block_for", lambda self, size=0: 20)
    for source, advised in (("a.txt.gz", True), ("b", False)):
        assert (
            run_command_line(["data", "index", str(tmp_path / source), "--out", str(tmp_path / "index" / source)]) == 0
        )
        said = capsys.readouterr().out
        assert ("hint:" in said and "order=SpreadOrder(len(data), seed, block=20, lanes=384)" in said) == advised, said
