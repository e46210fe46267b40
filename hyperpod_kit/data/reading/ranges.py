"""Several ranges of files at once: out of pieces in memory, or by themselves, with a hint for what lies around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyperpod_kit.data.bijection import Numbers
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFiles
from hyperpod_kit.data.reading.windows import ReadWindows

_AHEAD = 1 << 20
_REMEMBERED = 4096


class RangeReader:
    """Ranges of the files that an index knows. `memory`: see ReadWindows."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self.windows = ReadWindows(files, memory)
        self._hinted: dict[tuple[str, int], None] = {}
        self._begun = False

    def several(
        self, file: Callable[[int], FileFacts], numbers: Numbers, starts: Numbers, lengths: Numbers
    ) -> Sequence[bytes]:
        """The bytes of each range, in the order asked for; `file` gives the one of a number.

        Raises what SourceFiles.read raises."""
        found = self.windows.find(file, numbers, starts, lengths)
        return found if all(found) else self.completed(found, file, numbers, starts, lengths)

    def completed(
        self,
        found: Sequence[bytes],
        file: Callable[[int], FileFacts],
        numbers: Numbers,
        starts: Numbers,
        lengths: Numbers,
    ) -> list[bytes]:
        """`found` with what no piece had read by itself."""
        missing = [n for n, data in enumerate(found) if not data]
        places = [(file(int(numbers[n])), int(starts[n]), int(lengths[n])) for n in missing]
        if not self._begun:
            # Where training goes on, nothing is fetched but what the first batch is made of, side by side.
            for place in places:
                self._files.will_need(*place)
        elif len(missing) > 1 and self._files.by_others:
            self._files.prepare(places)
        every = list(found)
        for n, place in zip(missing, places, strict=True):
            every[n] = self.one(*place, hint=self._begun)
        self._begun = True
        return every

    def one(self, file: FileFacts, start: int, length: int, *, hint: bool = True) -> bytes:
        """The bytes of a range."""
        around = (file.path, start // _AHEAD)
        if hint and around not in self._hinted and not file.path.startswith("s3://"):
            # Samples of a block come soon and in another order, which no read-ahead of the kernel would guess.
            self._files.will_need(file, around[1] * _AHEAD, _AHEAD + length)
            self._hinted[around] = None
            if len(self._hinted) > _REMEMBERED:
                del self._hinted[next(iter(self._hinted))]
        return self._files.read(file, start, length)
