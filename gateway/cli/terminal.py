"""Prints for a person at a terminal: tables that fit it, times as ages, spinners and bars.

A table is as wide as the terminal: ids are cut to a start that no other id has, texts end in an
ellipsis, and the last columns are left out where there is no room. Elsewhere everything is printed
whole. Colours are for terminals without NO_COLOR. Spinners and notes go to standard error.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, NoReturn

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gateway.limits import ID_CHARS, MOMENT_SECONDS

TITLES = {
    "at": "When",
    "created_at": "When",
    "effective_access": "Access",
    "error_code": "Error",
    "expires_at": "Until",
    "granted_by": "By",
    "principal": "Who",
    "signed_in_at": "Since",
    "tokens": "≈ Tokens",
    "url": "URL",
}
# Columns that may be cut short; ids that other commands take, and short values, are not.
TEXTS = "arguments client client_name description path reason resource scope title tool url".split()
COLOURS = {
    "green": "accepted applied approved completed connected",
    "yellow": "held medium pending_confirmation unauthenticated unknown",
    "red": "breaking denied disabled expired failed failing high rejected risky",
    "cyan": "executing",
}
STYLES = {word: colour for colour, words in COLOURS.items() for word in words.split()}
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what could move a terminal's cursor
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
Tell = Callable[[str], None]
RowValues = Mapping[str, Any]


def fail(message: str, code: int = 1) -> NoReturn:
    """Prints a message and ends the command."""
    note(message)
    raise typer.Exit(code)


def note(message: str) -> None:
    """Prints a message to standard error, beside the output."""
    print(strip_controls(message), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints an upstream's text, which a terminal must not take for control codes."""
    print(strip_controls(text) if sys.stdout.isatty() else text)


def strip_controls(text: str) -> str:
    """A text without control characters."""
    return UNSAFE.sub("�", text)


def show_json(value: Any) -> None:
    """Prints a value as JSON on standard output."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def console_of(stderr: bool = False, width: int | None = None) -> Console:
    """Standard output or error, with colours unless NO_COLOR is set."""
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"  # nor bold
    return Console(stderr=stderr, highlight=False, width=width, color_system=colours)


# --- tables ---------------------------------------------------------------------------------------


def show_table(rows: Iterable[RowValues], columns: str, empty: str = "", **titles: str) -> None:
    """Prints rows as a table; its first columns are the most important."""
    items, is_tty = list(rows), sys.stdout.isatty()
    if not items:
        note(empty or "there are none")
        return
    cells = {
        name: [_cell(name, row.get(name), is_tty) for row in items] for name in columns.split()
    }
    for name in {"id", "execution"} & cells.keys() if is_tty else ():
        cells[name] = shorten(cells[name])
    for name, texts in cells.items():
        texts.insert(0, (TITLES | titles).get(name) or _title(name))
    widths = {name: max(map(cell_len, texts)) for name, texts in cells.items()}
    console = console_of(width=None if is_tty else sum(widths.values()) + 2 * len(widths))
    while len(cells) > 1 and _least_width(cells, widths) > console.width:
        cells.popitem()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, (title, *_) in cells.items():
        table.add_column(title, no_wrap=name not in TEXTS, overflow="fold")
    for row in list(zip(*cells.values(), strict=True))[1:]:
        table.add_row(*map(_style_cell, row))
    console.print(table)


def shorten(ids: list[str]) -> list[str]:
    """The start of each id, long enough that no other id has the same start."""
    length = ID_CHARS
    while len({id[:length] for id in ids}) < len(set(ids)):
        length += 1
    return [id[:length] for id in ids]


def _least_width(cells: Iterable[str], widths: Mapping[str, int]) -> int:
    """The least width that these columns need."""
    cut = {name: min(widths[name], ID_CHARS) for name in TEXTS if name in widths}
    if "tool" in widths:
        cut["tool"] = min(widths["tool"], 2 * ID_CHARS)
    return sum({**widths, **cut}[name] + 2 for name in cells) - 2


def _style_cell(text: str) -> Text:
    return Text(text, STYLES.get(text, ""), no_wrap=True, overflow="ellipsis")


def _title(name: str) -> str:
    return name.removesuffix("_at").replace("_", " ").capitalize()


def _cell(name: str, value: Any, is_tty: bool) -> str:
    if value is None or value == "":
        return ""
    if is_time(name):
        return age(value) if is_tty else local_time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return strip_controls(" ".join(as_text(value).split()))


def as_text(value: Any) -> str:
    """A value as a person reads it: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def show_details(item: RowValues) -> None:
    """Prints an item key by key; empty values are left out."""
    for key, value in item.items():
        if value is None or value in ("", [], {}):
            continue
        if is_time(key):
            text = f" {local_time(value)} ({age(value)})"
        elif isinstance(value, dict | list):
            lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().splitlines()
            text = "\n  ".join(["", *lines])
        else:
            text = f" {as_text(value)}"
        say(f"{key}:{text}")


# --- times ----------------------------------------------------------------------------------------


def is_time(name: str) -> bool:
    """Whether a column of this name holds a moment, in seconds since 1970."""
    return name == "at" or name.endswith("_at") or name == "last_refresh"


def local_time(at: float) -> str:
    """A moment in local time."""
    return datetime.fromtimestamp(at).isoformat(" ", "seconds")


def age(at: float) -> str:
    """How long ago a moment was, or in how long it will be."""
    seconds = time.time() - at
    if abs(seconds) < 1:
        return "now"
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in the unit that a person would use."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- work that takes a while ----------------------------------------------------------------------


@contextmanager
def show_spinner(words: str) -> Iterator[None]:
    """A spinner on a terminal while work takes longer than a moment."""
    # No markup: names have brackets.
    status = console_of(stderr=True).status(Text(strip_controls(words)))
    timer = threading.Timer(MOMENT_SECONDS / 2, status.start if sys.stderr.isatty() else int)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def show_progress(total: int, doing: str = "Loading", done: str = "loaded") -> Tell:
    """A function that reports each of `total` connections: by a bar on a terminal, else by lines.

    One connection needs no progress, so nothing is printed for it.
    """
    numbers, terminal = itertools.count(1), console_of(stderr=True)
    bar = Progress(console=terminal, transient=True)
    task = bar.add_task(doing, total=total)

    def tell(name: str) -> None:
        number = next(numbers)
        if total == 1:
            return
        if not terminal.is_terminal:
            print(f"{done} {name} ({number} of {total})", file=sys.stderr, flush=True)
            return
        bar.start()
        bar.update(task, completed=number, description=f"{doing} {name}")
        if number == total:
            bar.stop()

    return tell
