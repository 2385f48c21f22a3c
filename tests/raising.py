"""Errors that a test expects, with what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def raises(kind: type[Exception], **wanted: object) -> Iterator[None]:
    """Inside, such an error is raised; `problems` are the places that its problems name."""
    with pytest.raises(kind) as caught:
        yield
    error: Any = caught.value
    found = {name: getattr(error, name) for name in wanted if name != "problems"}
    if "problems" in wanted:
        found["problems"] = [problem["path"] for problem in error.details["problems"]]
    assert found == wanted
