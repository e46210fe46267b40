from hypothesis import given
from hypothesis import strategies as st

from hyperpod_rehearsal.s3.listing import LAST, list_page

KEYS = sorted(["a", "a/1", "a/2", "a/b/c", "b", "b/", "c/1", "d"])


def all_pages(keys, **arguments):
    pages, after = [], ""
    while True:
        page = list_page(keys, after=after, **arguments)
        pages.append(page)
        if page.resume is None:
            return pages
        after = page.resume


def test_delimiter_rolls_keys_up():
    page = list_page(KEYS, delimiter="/")
    assert page.keys == ("a", "b", "d")
    assert page.prefixes == ("a/", "b/", "c/")


def test_prefix_and_delimiter():
    page = list_page(KEYS, prefix="a/", delimiter="/")
    assert (page.keys, page.prefixes, page.resume) == (("a/1", "a/2"), ("a/b/",), None)


def test_prefix_may_be_part_of_a_name():
    assert list_page(["p/k1", "p/k2", "p/x"], prefix="p/k", delimiter="/").keys == ("p/k1", "p/k2")


def test_a_common_prefix_is_not_repeated_on_the_next_page():
    first = list_page(KEYS, delimiter="/", limit=2)
    assert (first.keys, first.prefixes, first.resume) == (("a",), ("a/",), "a/" + LAST)
    assert list_page(KEYS, delimiter="/", after=first.resume or "", limit=2).keys == ("b",)


def test_no_keys_asked_for():
    assert list_page(KEYS, limit=0).resume is None


@given(
    keys=st.sets(st.text("ab/é", min_size=1, max_size=5)),
    limit=st.integers(1, 4),
    prefix=st.text("ab/", max_size=2),
    delimiter=st.sampled_from(["", "/"]),
)
def test_paging_gives_what_one_page_gives(keys, limit, prefix, delimiter):
    ordered = sorted(keys)
    single_page = list_page(ordered, prefix=prefix, delimiter=delimiter)
    pages = all_pages(ordered, prefix=prefix, delimiter=delimiter, limit=limit)
    assert tuple(key for page in pages for key in page.keys) == single_page.keys
    assert tuple(item for page in pages for item in page.prefixes) == single_page.prefixes
    assert all(len(page.keys) + len(page.prefixes) <= limit for page in pages)
