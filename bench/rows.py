"""What is reported: one row a figure, with its goal and whether it was met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None  # the goal, where less is better
    least: float | None = None  # the goal, where more is better
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal was met; None: there is none, the figure is there to be read."""
        if self.most is None and self.least is None:
            return None
        return not (
            math.isnan(self.value)
            or (self.most is not None and self.value > self.most)
            or (self.least is not None and self.value < self.least)
        )


def table(rows: Iterable[Row]) -> str:
    """The rows for a terminal."""
    return "\n".join(
        f"{row.name:<58} {_figure(row.value):>8} {row.unit:<10} {_goal(row):<10} "
        f"{_MARKS[row.met]:<4} {row.note}".rstrip()
        for row in rows
    )


_MARKS = {True: "yes", False: "NO", None: ""}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _goal(row: Row) -> str:
    if row.most is not None:
        return f"≤ {row.most:g}"
    return f"≥ {row.least:g}" if row.least is not None else ""


def write(path: Path, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """The rows as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = [{**asdict(row), "met": row.met} for row in rows]
    path.write_bytes(orjson.dumps({**about, "rows": figures}, option=orjson.OPT_INDENT_2))
