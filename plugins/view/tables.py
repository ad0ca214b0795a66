"""Tables as all views have them."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

_WORDS = ("class", "classes", "state")
"""Columns of single words."""


_ANY = 10_000
"""Wider than any terminal."""
_LEAST = 8
"""Of the last column, whose words are folded only where they are longer."""


def percent(share: float | None) -> str:
    """Of deadlines that were met: 100 % only where none was missed.

    >>> percent(0.99998), percent(1.0), percent(0.57), percent(None)
    ('99.99%', '100.00%', '57.00%', '-')
    """
    if share is None:
        return "-"
    return f"{share if share >= 1 else min(share, 0.9999):.2%}"


class _Roomy(Table):
    """Two spaces between columns where all fit, else one."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.padding = (0, 2, 0, 0)
        wanted = self.__rich_measure__(console, options.update(max_width=_ANY))
        if wanted.maximum > options.max_width:
            self.padding = (0, 1, 0, 0)
        yield from super().__rich_console__(console, options)


def empty(title: str, texts: str, numbers: str, last: str = "") -> Table:
    """A table without rows; column names are separated by commas."""
    table = _Roomy(title=title, title_justify="left", title_style="bold", box=None)
    for index, name in enumerate(texts.split(",")):
        # A name that is broken in two cannot be found, nor copied.
        table.add_column(name, overflow="fold", no_wrap=index == 0 or name in _WORDS)
    for name in numbers.split(","):
        table.add_column(name, justify="right", no_wrap=" " not in name)
    if last:
        table.add_column(last, overflow="fold", min_width=_LEAST)
    return table
