"""How commands speak to a person: tables that fit the terminal, times as ages, spinners and bars.

On a terminal a table is as wide as that: ids are cut to a start that is theirs alone, texts end in
an ellipsis, and the last columns are left out where there is no room. Elsewhere everything is
printed whole. Colours are for terminals, and not for those who set NO_COLOR. What spins or says
that there is nothing goes to standard error.
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
# Columns that may be cut short; what other commands are given, and what is short, is not.
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
Row = Mapping[str, Any]


def fail(message: str, code: int = 1) -> NoReturn:
    """Ends the command."""
    note(message)
    raise typer.Exit(code)


def note(message: str) -> None:
    """Says something beside what was asked for."""
    print(plain(message), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Prints a text of somebody else, which a terminal must not take for commands."""
    print(plain(text) if sys.stdout.isatty() else text)


def plain(text: str) -> str:
    """A text without control characters."""
    return UNSAFE.sub("�", text)


def show_json(value: Any) -> None:
    """A value as JSON on standard output."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def console_of(stderr: bool = False, width: int | None = None) -> Console:
    """Standard output or error, with colours where they are wanted."""
    wanted: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"  # nor bold
    return Console(stderr=stderr, highlight=False, width=width, color_system=wanted)


# --- tables ---------------------------------------------------------------------------------------


def show_table(rows: Iterable[Row], columns: str, empty: str = "", **titles: str) -> None:
    """Rows as a table; of its columns the first ones are the most important."""
    listed, fitted = list(rows), sys.stdout.isatty()
    if not listed:
        note(empty or "there are none")
        return
    cells = {
        name: [_cell(name, row.get(name), fitted) for row in listed] for name in columns.split()
    }
    for name in {"id", "execution"} & cells.keys() if fitted else ():
        cells[name] = shorten(cells[name])
    for name, texts in cells.items():
        texts.insert(0, (TITLES | titles).get(name) or _title(name))
    widths = {name: max(map(cell_len, texts)) for name, texts in cells.items()}
    console = console_of(width=None if fitted else sum(widths.values()) + 2 * len(widths))
    while len(cells) > 1 and _least_width(cells, widths) > console.width:
        cells.popitem()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, (title, *_) in cells.items():
        table.add_column(title, no_wrap=name not in TEXTS, overflow="fold")
    for row in list(zip(*cells.values(), strict=True))[1:]:
        table.add_row(*map(_styled, row))
    console.print(table)


def shorten(ids: list[str]) -> list[str]:
    """The start of each id, as long as none of the others starts with it."""
    length = ID_CHARS
    while len({id[:length] for id in ids}) < len(set(ids)):
        length += 1
    return [id[:length] for id in ids]


def _least_width(cells: Iterable[str], widths: Mapping[str, int]) -> int:
    """What these columns need, and no less."""
    cut = {name: min(widths[name], ID_CHARS) for name in TEXTS if name in widths}
    if "tool" in widths:
        cut["tool"] = min(widths["tool"], 2 * ID_CHARS)
    return sum({**widths, **cut}[name] + 2 for name in cells) - 2


def _styled(text: str) -> Text:
    return Text(text, STYLES.get(text, ""), no_wrap=True, overflow="ellipsis")


def _title(name: str) -> str:
    return name.removesuffix("_at").replace("_", " ").capitalize()


def _cell(name: str, value: Any, fitted: bool) -> str:
    if value is None or value == "":
        return ""
    if is_time(name):
        return age(value) if fitted else local_time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(" ".join(as_text(value).split()))


def as_text(value: Any) -> str:
    """A value as one reads it: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def show_details(found: Row) -> None:
    """One thing, key by key; what is not set is left out."""
    for key, value in found.items():
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
    """Whether what is called so is a moment, in seconds since 1970."""
    return name == "at" or name.endswith("_at") or name == "last_refresh"


def local_time(at: float) -> str:
    """A moment as the clock on the wall has it."""
    return datetime.fromtimestamp(at).isoformat(" ", "seconds")


def age(at: float) -> str:
    """How long ago a moment was, or in how long it will be."""
    seconds = time.time() - at
    if abs(seconds) < 1:
        return "now"
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in the unit that one would say it in."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- work that takes a while ----------------------------------------------------------------------


@contextmanager
def working(words: str) -> Iterator[None]:
    """A spinner on a terminal while something takes longer than one likes to look at nothing."""
    status = console_of(stderr=True).status(Text(plain(words)))  # no markup: names have brackets
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
    """Tells of each of so many connections once it was read: a bar on a terminal, else lines.

    One connection needs no progress, so nothing is said of it.
    """
    counted, terminal = itertools.count(1), console_of(stderr=True)
    bar = Progress(console=terminal, transient=True)
    task = bar.add_task(doing, total=total)

    def tell(name: str) -> None:
        number = next(counted)
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
