from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_kit.slurm.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("ip-10-1-41-[18-20],x[01-03]", ["ip-10-1-41-18", "ip-10-1-41-19", "ip-10-1-41-20", "x01", "x02", "x03"]),
        ("n[1,3,8-10]", ["n1", "n3", "n8", "n9", "n10"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("rack[0-1]n[1-2]-ib", ["rack0n1-ib", "rack0n2-ib", "rack1n1-ib", "rack1n2-ib"]),
        ("a, b", ["a", "b"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[a-b]", "n[3-1]", "n[]", "n[[1]]"])
def test_expand_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "b[0-4294967295]",
        "b[" + "9" * 5000 + "]",
        "a[0-999]b[0-999]",
        "a[0-9]" * 6,
        "a[1]" * 300_000,
        "a" * 5_000_000,
        ",".join(["a[0-9999]"] * 10),
        "a[" + "0-9999," * 10 + "1]",
        "x" * 4_000_000 + "[0-60000]",
        "\u0661[\u0661-\u0662]",
    ],
)
def test_expand_is_bounded(text: str) -> None:
    with pytest.raises(ValueError, match="host list") as caught:
        expand(text)
    assert len(str(caught.value)) < 300


def test_a_whole_cluster_of_slurm_is_a_host_list() -> None:
    assert len(expand("n[0-65535]")) == 65536 and len(expand("a[0-255]n[0-255]")) == 65536


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n3", "n1", "n2", "n2"], "n[1-3]"),
        (["ip-10-1-41-18"], "ip-10-1-41-18"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["n1", "n01", "login"], "login,n[1,01]"),
    ],
)
def test_compress(names: list[str], text: str) -> None:
    assert compress(names) == text


NAME = st.from_regex(r"[a-z]{1,4}(-[0-9]{1,2}-)?[0-9]{0,4}", fullmatch=True)


@given(st.sets(NAME, max_size=30))
def test_compress_and_expand_are_inverse(names: set[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(names)
