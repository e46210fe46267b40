"""Five hundred values for a field: what shells, systemd, Jinja, terminals and paths make something of, and the field's
own legal value spoilt in every way that a rule with a missing anchor or a class too wide would let through."""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Tuple

CANARY = "/tmp/hpk-canary-of-the-property-test"
COUNT = 500

WORDS = r"""
&& ${HOME} $HOME $$ ${IFS} - -- -rf --help a,b a=b
%n %h %% %s%i a;b \x20 "a" 'a -.mount a@b a@.service @ : [Service] +a -a !a ~a a.service {{}} {%raw%} {{7*7}}
/ // . .. ./ ../ ../../etc /.. /../etc /etc /etc/passwd /proc/self /sys /dev/null /dev/shm /tmp /root/.ssh /home
/opt/slurm /var/lib ~ ~/x a/../b a//b /a/./b /a/ a/ C:\x \\host\x file:///etc s3://x/y http://169.254.169.254/ nul con
/mnt/%n /mnt/$x /mnt/ü /mnt/-a
0 -1 1 00 0x10 1e3 1_000 1.0 +1 ٣ inf nan 30s true false null None yes no
root daemon slurm ubuntu systemd-network nobody DEFAULT default ALL localhost 127.0.0.1 192.168.0.1 ::1 xn--a a.b a_b A
a- us-west-9 xx-yyyy-9 us-gov-west-1 fs- sg- vpc-1 ml.c5 aws arn:aws:iam::1:role/../x
１２ 日本 ｓ3 рath
"""
"""What a shell, systemd, Jinja, a file system, a parser of numbers or AWS has a meaning for; and what looks like it."""
LINES = (
    *(f"$(touch {CANARY})", f"`touch {CANARY}`", f"'; touch {CANARY} #", f"| touch {CANARY}", f"\n touch {CANARY}"),
    *(f"a\nExecStartPre=/usr/bin/touch {CANARY}", f"{{% include '{CANARY}' %}}", "{{ ''.__class__ }}", "{# a #}"),
    *("a b", " a", "a ", "a\tb", "-o x", "a\\\nb", "# a", " ; ", " 1", "1 ", "1" * 5000, "\x1b[2J", "\x1b]0;pwned\x07"),
    *("\r\nFAKE: all ok", "/mnt/" + "a" * 300, "/" + "a/" * 3000, "/mnt/\n", "/mnt/a b"),
)
CHARACTERS = (
    *"'\"`$\\;|&><*?~#!(){}[]%",
    *(chr(code) for code in (*range(0, 32), *range(127, 160))),
    *"\u2028\u2029\u202e\u200b\u200d\ufeff\u00ad\ud800\ufffe\ufdd0\U000e0041",
    *"ａе０٣²½ıİßﬁÅéü😀‐–−․∕／．：\u00a0\u3000",
)
LENGTHS = tuple("a" * number for number in (0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1024, 4096, 100_000))
OTHERS: Tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e30, float("inf"), [], {}, [[]], ["a"], {"a": 1}, [None], [{}]),
)
"""Values that are no text."""

_BEFORE = ("evil.com/", "../", " ", "\n", "-", "a", "0", ".", "%", "$", "\ufeff")
_AFTER = (".evil.com", "/../x", "%n", ";x", "$x", "..", "=x", *"\n @:,\0é-./a0")
_INTO = "\0\n\t\r\x1b\x7f\x9b'\"`$\\;|&<>*?~#%!(){}[]@:,=+^_-./ ü\u202e\u200b０"


def texts(legal: str) -> List[Any]:
    """COUNT values for a field whose legal value is `legal`, and no fewer; the same at every run."""
    dice = random.Random(legal)

    def spoilt() -> str:
        """`legal` with a character put in, or another in the place of one."""
        place = dice.randrange(len(legal) + 1)
        return legal[:place] + dice.choice(_INTO) + legal[place + dice.randrange(2) :]

    fixed = (
        *(*WORDS.split(), *LINES, *CHARACTERS, *LENGTHS, *OTHERS),
        *(legal + after for after in _AFTER),
        *(before + legal for before in _BEFORE),
        *(legal.upper(), legal.title(), legal[::-1], legal * 2, legal * 100, legal[1:], legal[:-1], f'"{legal}"'),
    )
    return _distinct(fixed, spoilt)


def numbers(legal: float) -> List[Any]:
    """The same for a field whose legal value is a number."""
    dice = random.Random(0)
    fixed: Tuple[Any, ...] = (
        *range(-20, 40),
        *(2**power + more for power in range(5, 130, 3) for more in (-1, 0, 1)),
        *(sign * 10.0**power for power in range(-30, 39, 2) for sign in (1, -1)),
        *(1e308, 5e-324, float("inf"), float("-inf"), float("nan"), -0.0, 0.1, 1 / 3, 10**1000),
        *(str(legal), f"{legal}s", f" {legal}", "", "０", "0x10", "1e3", *OTHERS),
        *(legal + step for step in (-1, 1, 0.5, 1e-9)),
    )
    return _distinct(fixed, lambda: round(dice.uniform(-100, 5000), dice.randrange(6)))


def _distinct(fixed: Tuple[Any, ...], another: Callable[[], Any]) -> List[Any]:
    found: Dict[str, Any] = {f"{type(value)}{value!r}": value for value in fixed}
    while len(found) < COUNT:
        value = another()
        found.setdefault(f"{type(value)}{value!r}", value)
    return list(found.values())
