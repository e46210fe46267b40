"""Mounts as data, one file for each kind; `base` has what all of them share, `kinds` is the one list of them."""
