from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.database import Database
from gateway.store.ledger import get_execution
from gateway.store.statements import json_bytes, json_value
from tests.store.rows import add_execution, execution

NASTY = "nul \0 surrogate \ud800 snow ☃ 𝔘"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_any_json_value_comes_back(value: object) -> None:
    assert json_value(json_bytes(value)) == value


@given(st.characters(categories=["Cs"]) | st.integers(min_value=2**64))
def test_what_the_fast_codec_refuses_comes_back_too(value: object) -> None:
    assert json_value(json_bytes({"key": value})) == {"key": value}


async def test_text_no_database_can_hold_is_kept_recognisable(db: Database) -> None:
    await add_execution(db, execution(client=NASTY, arguments={NASTY: NASTY}))

    found = await get_execution(db, execution().id)

    readable = "nul � surrogate ��� snow ☃ 𝔘"
    assert found == execution(client=readable, arguments={NASTY: NASTY})
