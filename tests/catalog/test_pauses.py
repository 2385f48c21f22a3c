"""The pauses between looks that fail."""

from __future__ import annotations

from gateway.catalog.schedule import Pauses
from gateway.limits import DOUBT_SECONDS, LONGEST_PAUSE_SECONDS


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    pauses, now, tries = Pauses(), 1000.0, []
    assert not pauses.is_over("a", now)  # the failure itself was the first try
    while now < 4000.0:
        now += 1.0
        if pauses.is_over("a", now):
            tries.append(now)
    gaps = [later - earlier for earlier, later in zip([1000.0, *tries], tries, strict=False)]
    assert DOUBT_SECONDS * 0.8 <= gaps[0] <= DOUBT_SECONDS * 1.2 + 1
    assert gaps[1] > gaps[0] * 1.2 and gaps[2] > gaps[1] * 1.2
    assert LONGEST_PAUSE_SECONDS * 0.8 <= gaps[-1] <= LONGEST_PAUSE_SECONDS * 1.2 + 1
    pauses.end("a")
    assert not pauses.is_over("a", now)
    assert pauses.is_over("a", now + DOUBT_SECONDS * 1.2)
