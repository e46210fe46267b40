"""What a rehearsal says of the machine that it is to run on."""

from __future__ import annotations

from hyperpod_rehearsal.machines import host

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
me:x:1000:100::/home/me:/bin/bash
alice:x:1001:1001::/home/alice:/bin/zsh
backup:x:1002:1002::/:/usr/sbin/nologin
bob\x1b]0;x:x:1003:1003::/home/bob:/bin/sh
carol:x:1004:1004::/home/carol:/bin/sh
dave:x:1005:1005::/home/dave:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
half a line
"""


def test_who_else_can_log_in(tmp_path):
    (tmp_path / "passwd").write_text(PASSWD)
    users = host.other_login_users(tmp_path / "passwd", {"SUDO_UID": "1000"})
    assert users == ["alice", "bob\x1b]0;x", "carol", "dave"]
    warning = host.other_users_warning(users)
    assert warning.startswith("warning: alice, bob ]0;x, carol and 1 more can log in") and "\x1b" not in warning
    assert host.other_users_warning([]) == ""
    assert host.other_login_users(tmp_path / "passwd", {})[0] == "me"
