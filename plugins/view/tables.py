"""Tables as all views have them."""

from __future__ import annotations

from rich.table import Table


def empty(title: str, texts: str, numbers: str, last: str = "") -> Table:
    """A table without rows; column names are separated by commas."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for index, name in enumerate(texts.split(",")):
        # A name that is broken in two cannot be found, nor copied.
        table.add_column(name, overflow="fold", no_wrap=index == 0)
    for name in numbers.split(","):
        table.add_column(name, justify="right")
    if last:
        table.add_column(last, overflow="fold")
    return table
