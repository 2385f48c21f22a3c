from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.calls.approvals import Approvals, Ticket
from gateway.calls.call import Invoker, give_token
from gateway.calls.credentials import Credentials, PreparedConnection, PreparedConnections
from gateway.calls.record import Attempt, Caller, recorded_values
from gateway.calls.sign_in_question import SignInQuestions
from gateway.errors import Fixable, UpstreamFailed
from gateway.outbound.client import Egress, NoAnswer
from gateway.store.cluster import Signals
from gateway.store.database import Database
from gateway.store.housekeeping import beat, leave
from gateway.store.ledger import Filter, begin_execution, list_executions, mark_unknown
from gateway.store.secrets import Seal
from gateway.store.tables import Replica
from tests.calls.lines import ANN, attempt, find, snapshot, tool
from tests.databases import empty_store

T = TypeVar("T")

ANSWER = {
    "structuredContent": {
        "booking": {"booking_id": "b-7", "rooms": [{"id": 1}, {"id": 2}]},
        "a/b": {"c~d": True},
        "nothing": None,
        "large": "x" * 50_000,
    }
}


@pytest.mark.parametrize(
    ("names", "recorded"),
    [
        ((), None),
        (("booking_id",), {"booking_id": "b-7"}),
        (("c~d",), {"c~d": True}),
        (("id", "booking_id"), {"id": 1, "booking_id": "b-7"}),
        (("missing", "nothing", "large"), None),
    ],
)
def test_recorded_values_are_found_by_name(
    names: tuple[str, ...], recorded: dict[str, Any] | None
) -> None:
    assert recorded_values(names, ANSWER) == recorded


def test_recorded_values_are_found_in_json_text() -> None:
    content = [{"type": "text", "text": "Booked."}, {"type": "text", "text": '{"id": 7}'}]
    assert recorded_values(("id",), {"content": content}) == {"id": 7}
    assert recorded_values(("id",), {"content": content[:1]}) is None


READ, PLAIN, WRITE = tool("shop_look", "read"), tool(http=None), tool()


@pytest.mark.parametrize(
    ("used", "given", "kept"),
    [
        (WRITE, "t-1", ("t-1", True)),
        (PLAIN, "t-1", ("t-1", True)),  # a write without a header: once through the ledger
        (PLAIN, None, (None, False)),
        (READ, "t-1", (None, False)),
    ],
)
def test_token_is_the_callers_own_where_it_is_used(
    used: Any, given: str | None, kept: tuple[str | None, bool]
) -> None:
    made = attempt(used, meta={} if given is None else {"gateway/idempotency_token": given})
    give_token(made)
    assert (made.token, made.token_given) == kept


def test_fresh_token_is_a_uuid_of_its_own() -> None:
    one, two = attempt(), attempt()
    give_token(one)
    give_token(two)
    assert one.token is not None and len(one.token) == 36 and one.token != two.token


@pytest.mark.parametrize("token", ["", " ", "a b", "é", "x" * 201, 7, ["t"], "a\n"])
def test_token_that_is_none_is_refused(token: Any) -> None:
    with pytest.raises(Fixable):
        give_token(attempt(meta={"gateway/idempotency_token": token}))


def test_tickets_in_stores_keep_their_keys() -> None:
    assert Ticket.__struct_encode_fields__ == ("principal", "arguments", "door", "token")


class TokenLedger(RuleBasedStateMachine):
    """Calls with few tokens and arguments, over a far side that fails in every way it can.

    Against a model of what each token stands for: nothing yet, an answer that is given again, or a
    doubt that stays. However calls, failures and crashes follow each other, a token is sent once.
    """

    outcomes: ClassVar[tuple[str, ...]] = ("answer", "refusal", "unsent", "lost", "broken")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-ledger-"))
        self.loop = asyncio.new_event_loop()
        shutil.copy(empty_store(), self.folder / "gateway.db")
        self.db = Database(f"sqlite:///{self.folder}/gateway.db")
        self.run(self.db.open())
        self.sent: list[str] = []
        self.model: dict[str, tuple[str, Any]] = {}  # token → (arguments, answer or "unknown")
        self.next_outcome = "answer"
        self.process = 0
        self.start_process()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def start_process(self) -> None:
        self.process += 1
        self.replica = f"r{self.process}"
        self.run(beat(self.db, Replica(self.replica, "here", self.process, 0.0)))
        prepared, signals, seal = PreparedConnections(), Signals(), Seal(["a key of this test"])
        finding = (snapshot, lambda reference, seen, principal: find(seen, principal))
        approvals = Approvals(self.db, seal, signals, *finding, replica=self.replica)
        sign_in = SignInQuestions(Credentials(Egress()), seal, signals).ensure
        self.invoker = Invoker(prepared, self.send, approvals, sign_in)

    async def send(self, made: Attempt, prepared: PreparedConnection) -> dict[str, Any]:
        assert made.token is not None
        if self.next_outcome == "unsent":
            raise NoAnswer("upstream_unreachable", "no way", sent=False)
        self.sent.append(made.token)
        match self.next_outcome:
            case "lost":
                raise NoAnswer("upstream_timeout", "too slow", sent=True)
            case "broken":
                raise RuntimeError("a mistake of ours, after sending")
            case "refusal":
                raise UpstreamFailed("upstream_error", "no room")
        return {"content": [], "structuredContent": {"n": len(self.sent)}, "isError": False}

    @rule(
        token=st.sampled_from("ab"), book=st.sampled_from("xy"), outcome=st.sampled_from(outcomes)
    )
    def call(self, token: str, book: str, outcome: str) -> None:
        self.next_outcome = outcome
        before = len(self.sent)
        result = self.run(self.made(token, book))
        known = self.model.get(token)
        error = (result.get("structuredContent") or {}).get("error", {}).get("code")
        if known is None:
            assert len(self.sent) - before == (outcome != "unsent")
            self.learn(token, book, outcome, result, error)
            return
        assert len(self.sent) == before
        if known[0] != book:
            assert error == "idempotency_conflict"
        elif known[1] == "unknown":
            assert error == "outcome_unknown"
        else:
            assert {**result, "_meta": None} == {**known[1], "_meta": None}

    def learn(self, token: str, book: str, outcome: str, result: Any, error: str | None) -> None:
        match outcome:
            case "unsent":
                assert error == "upstream_unreachable"
            case "lost" | "broken":
                assert error == "outcome_unknown"
                self.model[token] = (book, "unknown")
            case "refusal":
                assert error == "upstream_error"
                self.model[token] = (book, result)
            case _:
                assert error is None
                self.model[token] = (book, result)

    @rule(token=st.sampled_from("ab"), book=st.sampled_from("xy"))
    def crash_while_sending(self, token: str, book: str) -> None:
        made = attempt(arguments={"book": book})
        made.replica, made.token = self.replica, token
        begun = self.run(begin_execution(self.db, made.execution("executing")))
        if begun.is_new:
            self.sent.append(token)
            self.model[token] = (book, "unknown")
        self.run(leave(self.db, self.replica))
        self.start_process()
        found = self.run(mark_unknown(self.db, now=1.0))
        assert [each.idempotency_token for each in found] == [token] * begun.is_new

    @rule(token=st.sampled_from("ab"), book=st.sampled_from("xy"))
    def call_at_once(self, token: str, book: str) -> None:
        self.next_outcome = "answer"

        async def together() -> list[dict[str, Any]]:
            return await asyncio.gather(*(self.made(token, book) for _ in range(3)))

        results = self.run(together())
        bare = [{**result, "_meta": None} for result in results]
        assert bare == bare[:1] * 3
        known = self.model.get(token)
        if known is None:
            self.model[token] = (book, results[0])

    def made(self, token: str, book: str) -> Coroutine[Any, Any, dict[str, Any]]:
        caller = Caller(ANN, meta={"gateway/idempotency_token": token})
        freely = snapshot(permissions={"level": "full_access"})
        return self.invoker.call(freely, freely.tools["shop_order"], {"book": book}, caller, {})

    @invariant()
    def each_token_was_sent_at_most_once(self) -> None:
        if hasattr(self, "sent"):
            assert len(self.sent) == len(set(self.sent))

    @invariant()
    def nothing_stays_executing(self) -> None:
        if hasattr(self, "db"):
            page = self.run(list_executions(self.db, Filter(status="executing")))
            assert page.executions == []

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.run(self.db.close())
            self.loop.close()
            shutil.rmtree(self.folder)


TestTokenLedger = TokenLedger.TestCase
TestTokenLedger.settings = settings(
    stateful_step_count=12, max_examples=settings().max_examples // 3
)
