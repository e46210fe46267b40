"""Which of several sets is drawn at each place, so that each has its share of every stretch: no prefix is off by one
sample of any set, and no window by two.

**What is possible.** With n sets a prefix cannot stay closer than 1 - 1/(2n - 2) for every choice of shares (Tijdeman,
the chairman assignment problem), so less than 1 is what there is to reach. Put as a schedule: draw j of a set with
share w (j = 1, 2, …) keeps its set within one sample exactly if it comes at a place of its window

    floor((j - 1) / w) <= place < ceil(j / w).

Earliest deadline first finds one draw for each place inside all windows wherever one exists, and with shares that sum
to 1 it does: for places x … y - 1 the windows inside number at most the sum of w (y - x), which is y - x.

**How a place is found again.** What was drawn before a place depends, with that rule, on all places before it. So it is
begun anew at each multiple of BLOCK places, BLOCK >= 1 / (smallest share), from a state that is worked out from the
place alone. Let f be the fractional part of w N at such a place N. A set with f > 0 has one draw whose window reaches
over N; S are the sets that have made it. Any S will do that leaves both sides a schedule, and that is (Hall):

    right of N:  #(S with a deadline beyond y)          <= sum of frac(w y)            for each y > N
    left of N:   #(not in S, window begins before x)    <= sum of ceil(w x) - w x      for each x < N

and #S = sum of f, a whole number. Both sums are whole too. Over the sets on the left side alone, f >= its value (the
fractional part only grows inside a window), so "S = f" fulfils both lines in fractions, also when a sum is taken over
those sets alone and rounded up. Both lines are bounds of nested families of sets, a matrix of which is totally
unimodular; so a whole S exists too. Those that fulfil the second line are the bases of a matroid. Its greedy basis,
earliest deadlines in S first, has for each y the fewest that lie beyond y, hence fulfils the first line as well.

No window reaches over two such places, so each N is worked out without regard to another: O(sets log sets). Within a
block the state before any place is a greedy basis again (unit jobs, earliest deadline first, on one machine: what is
done by a time is the best basis of what could be done by then), found without going through the places before it.

Shares are whole multiples of 2**-42, which puts a set off by n * 2**-42 after n samples: 0.0003 after a thousand
million. Where deadlines are equal, as they are of equal shares, chance (the seed) says which set is first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from hyperpod_kit.data.numbers.bijection import Numbers, mix_key, mix_keys
from hyperpod_kit.data.numbers.deduplication import unique_values

MIN_SHARE = 1e-6
"""The smallest share of the whole."""

_UNIT_BITS = 42
_UNIT = 1 << _UNIT_BITS
"""Of a share: all sets together."""

_MAX_BITS = 20
"""Of a block's places: times a share, these fit into 63 bits."""
_MIN_BITS = 16
_CHUNK = 8192
"""Places that are worked out together."""
_MAX_CHUNKS = 4
_MAX_BLOCKS = 4
_CHANCE_BITS = 20
_SET_BITS = 20


class _DrawStart(NamedTuple):
    """The beginning of a block: of each set the fraction of a draw that is due (in units of _ONE), whether the draw
    whose window reaches over it is made, and how many are made in all."""

    due: Numbers
    ahead: Numbers
    made: Numbers


class _DrawBlock(NamedTuple):
    """`start`, and how many draws of each set are made in the block."""

    start: _DrawStart
    draws: Numbers


class _DrawChunk(NamedTuple):
    """The sets that are drawn at the places of a chunk, and how many draws of each came before."""

    sets: Numbers
    before: Numbers


class EvenDraw:
    """Set n of `shares` at a place, with its share of every stretch. Raises ValueError for shares below MIN_SHARE."""

    def __init__(self, shares: Sequence[float], seed: int = 0) -> None:
        self.weights = _integer_weights(shares)
        self._key = mix_key(seed, len(shares))
        least = int(self.weights.min())
        wanted_bits = max(_MIN_BITS, (_UNIT // least).bit_length() + 1)
        self._bits = min(_MAX_BITS, wanted_bits)
        self._starts: dict[int, _DrawStart] = {}
        self._chunks: dict[int, _DrawChunk] = {}
        self._carried: tuple[int, Numbers] | None = None

    @property
    def shares(self) -> list[float]:
        """Return the share of each set in the whole."""
        return [weight / _UNIT for weight in self.weights.tolist()]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_starts": {}, "_chunks": {}, "_carried": None}

    def sets_and_prior_draws_at(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """Look up (set, its draws before this one) at each place."""
        sets, before = np.zeros_like(places), np.array(places)
        if len(self.weights) == 1:
            return sets, before
        chunks = places // _CHUNK
        for number in unique_values(chunks).tolist():
            here = np.flatnonzero(chunks == number) if chunks[0] != chunks[-1] else slice(None)
            chunk = self._cached_chunk(number)
            inside = places[here] - number * _CHUNK
            sets[here], before[here] = chunk.sets[inside], chunk.before[inside]
        return sets, before

    def _cached_chunk(self, number: int) -> _DrawChunk:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = self._compute_chunk(number)
            for old in list(self._chunks)[:-_MAX_CHUNKS]:
                del self._chunks[old]
        return chunk

    def _compute_chunk(self, number: int) -> _DrawChunk:
        """Draw a chunk by earliest deadline, from the state before its first place."""
        at, begin = divmod(number * _CHUNK, 1 << self._bits)
        block = self._compute_block(at)
        made = None
        if self._carried is not None and self._carried[0] == number and begin:
            made = self._carried[1]
        if made is None:
            made = self._draws_before(block, begin)
        end = begin + _CHUNK
        sets = _sets_by_earliest_deadline_first(*self._pending_releases_and_keys(block, made, end), begin, end)
        counts = np.bincount(sets, minlength=len(made))
        by_set = np.argsort(sets, kind="stable")
        earlier = np.empty_like(sets)
        earlier[by_set] = np.arange(len(sets)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._carried = number + 1, made + counts
        return _DrawChunk(sets, block.start.made[sets] + made[sets] + earlier)

    def _pending_releases_and_keys(self, block: _DrawBlock, made: Numbers, end: int) -> tuple[Numbers, Numbers]:
        """Compute (first place, key) of the draws after those `made` whose windows begin before `end`."""
        start = block.start
        begun_draws = (end * self.weights + start.due - 1) // _UNIT + 1
        upto = np.minimum(begun_draws - start.ahead, block.draws)
        sets, numbers = _enumerate_ranges(made, upto)
        return self._release_positions(start, sets, numbers), self._deadline_sort_keys(start, sets, numbers)

    def _release_positions(self, start: _DrawStart, sets: Numbers, numbers: Numbers) -> Numbers:
        """Compute the first place of draws, in places of the block; `numbers`: draws of the set in the block before
        each."""
        units = (start.ahead[sets] + numbers) * _UNIT
        position: Numbers = np.maximum(0, (units - start.due[sets]) // self.weights[sets])
        return position

    def _deadline_positions(self, start: _DrawStart, sets: Numbers, numbers: Numbers) -> Numbers:
        """Compute the last place of draws."""
        units = (start.ahead[sets] + numbers + 1) * _UNIT
        position: Numbers = (units - start.due[sets] - 1) // self.weights[sets]
        return position

    def _deadline_sort_keys(self, start: _DrawStart, sets: Numbers, numbers: Numbers) -> Numbers:
        """Compute sort keys: earlier deadlines first, by chance among equal ones; the set in the lowest bits."""
        ends = np.minimum(self._deadline_positions(start, sets, numbers), (1 << self._bits) - 1)
        return _sort_keys_by_deadline_then_chance(ends, self._key, start.made[sets] + numbers, sets)

    def _draws_before(self, block: _DrawBlock, position: int) -> Numbers:
        """Count the draws of each set in the block before a place of it: those that are due, and of the others that
        could be made by then those with the earliest deadlines."""
        start = block.start
        due: Numbers = np.clip((position * self.weights + start.due) // _UNIT - start.ahead, 0, block.draws)
        free = position - int(due.sum())
        if not free:
            return due
        # Places from x on that draws which are due by then leave to others.
        releases = self._release_positions(start, *_enumerate_ranges(np.zeros_like(due), due))
        taken = np.cumsum(np.bincount(releases, minlength=position)[::-1])[::-1]
        free_from = np.minimum.accumulate(np.arange(position, 0, -1) - taken)
        sets = np.flatnonzero(due < block.draws)
        release = self._release_positions(start, sets, due[sets])
        sets, release = sets[release < position], release[release < position]
        order = np.argsort(self._deadline_sort_keys(start, sets, due[sets]))
        chosen = _greedy_matroid_basis(free_from[release[order]].tolist(), free)
        due[sets[order][chosen]] += 1
        return due

    def _compute_block(self, number: int) -> _DrawBlock:
        start, after = self._cached_block_start(number), self._cached_block_start(number + 1)
        return _DrawBlock(start, after.made - start.made)

    def _cached_block_start(self, number: int) -> _DrawStart:
        start = self._starts.get(number)
        if start is None:
            start = self._starts[number] = self._compute_block_start(number << self._bits)
            for old in list(self._starts)[:-_MAX_BLOCKS]:
                del self._starts[old]
        return start

    def _compute_block_start(self, position: int) -> _DrawStart:
        """Compute the state before a block's first place; see above."""
        exact = [position * weight for weight in self.weights.tolist()]
        made = np.array([product >> _UNIT_BITS for product in exact], np.int64)
        due = np.array([product & (_UNIT - 1) for product in exact], np.int64)
        ahead = np.zeros_like(due)
        open_sets = np.flatnonzero(due)
        if not open_sets.size:
            return _DrawStart(due, ahead, made)
        fraction, weight = due[open_sets], self.weights[open_sets]
        behind = len(open_sets) - int(fraction.sum()) // _UNIT
        # Places between the beginning of each window and this one, windows that begin first in front.
        since = (fraction - 1) // weight
        by_begin = np.argsort(-since, kind="stable")
        sooner = since[by_begin]
        later = np.append(sooner[1:] + 1, 0)
        owed = np.cumsum(_UNIT - fraction[by_begin]) + later * np.cumsum(weight[by_begin])
        most = -(-owed // _UNIT)
        most[:-1][sooner[1:] == sooner[:-1]] = len(open_sets)  # windows that begin together are bounded together
        bounds = np.empty_like(most)
        bounds[by_begin] = np.minimum.accumulate(most[::-1])[::-1]
        ends = (_UNIT - fraction - 1) // weight
        latest_first = np.argsort(_sort_keys_by_deadline_then_chance(ends, self._key, made[open_sets], open_sets))[::-1]
        waiting = _greedy_matroid_basis(bounds[latest_first].tolist(), behind)
        ahead[open_sets] = 1
        ahead[open_sets[latest_first][waiting]] = 0
        return _DrawStart(due, ahead, made + ahead)


def _integer_weights(shares: Sequence[float]) -> Numbers:
    """Turn shares into whole numbers that sum to _UNIT: the largest remainders are rounded up.

    Raises ValueError for shares that are not above 0, or below MIN_SHARE of the whole.
    """
    if not shares or not all(0 < share < math.inf for share in shares):
        raise ValueError(f"the shares {list(shares)[:8]}: one share above 0 for each set")
    exact = [Fraction(share) for share in shares]
    total = sum(exact)
    for number, share in enumerate(exact):
        if share < total * Fraction(MIN_SHARE):
            raise ValueError(
                f"set {number} has {float(share / total):.3g} of all samples, below the minimum of {MIN_SHARE:g}: "
                "leave it out, or merge it with another set"
            )
    scaled = [share * _UNIT / total for share in exact]
    weights = [int(share) for share in scaled]
    by_rest = sorted(range(len(weights)), key=lambda number: weights[number] - scaled[number])
    for number in by_rest[: _UNIT - sum(weights)]:
        weights[number] += 1
    return np.array(weights, np.int64)


def _sort_keys_by_deadline_then_chance(deadlines: Numbers, key: int, numbers: Numbers, sets: Numbers) -> Numbers:
    """Compute keys that order draws by their last place, then by chance."""
    chance = (mix_keys(key, (numbers << _SET_BITS) + sets) >> np.uint64(64 - _CHANCE_BITS)).astype(np.int64)
    keys: Numbers = (((deadlines << _CHANCE_BITS) | chance) << _SET_BITS) | sets
    return keys


def _enumerate_ranges(begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """(n, number) for each number from begins[n] up to ends[n]."""
    counts = np.maximum(ends - begins, 0)
    sets = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(sets)) - np.repeat(np.cumsum(counts) - counts, counts)
    return sets, numbers + begins[sets]


def _sets_by_earliest_deadline_first(releases: Numbers, keys: Numbers, begin: int, end: int) -> Numbers:
    """The sets at places begin … end - 1: of the draws whose windows have begun, the one with the smallest key."""
    by_release = np.argsort(releases, kind="stable")
    coming: list[int] = keys[by_release].tolist()
    bounds = np.searchsorted(releases[by_release], np.arange(begin, end), side="right").tolist()
    ready, released = coming[: bounds[0]], bounds[0]
    heapq.heapify(ready)
    push, pop = heapq.heappush, heapq.heappop
    drawn: list[int] = []
    for bound in bounds:
        while released < bound:
            push(ready, coming[released])
            released += 1
        drawn.append(pop(ready))
    sets: Numbers = np.array(drawn, np.int64) & ((1 << _SET_BITS) - 1)
    return sets


def _greedy_matroid_basis(bounds: Iterable[int], size: int) -> list[int]:
    """Which of these, taken greedily up to `size`, so that for each b at most b have a bound of b or less: each takes
    the last free one of the first `bound` seats."""
    seats = list(range(size + 1))
    chosen: list[int] = []
    for number, bound in enumerate(bounds):
        if len(chosen) == size:
            break
        seat = min(bound, size)
        while seats[seat] != seat:
            seats[seat] = seats[seats[seat]]
            seat = seats[seat]
        if seat:
            seats[seat] = seat - 1
            chosen.append(number)
    return chosen
