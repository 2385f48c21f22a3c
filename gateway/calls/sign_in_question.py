"""A call that needs somebody to sign in first: its client is asked to open a page, then it goes on.

    client               how it is asked                     how the call goes on
    2025, opens pages    on the stream of its request        where it waits, when the person is back
    2026, opens pages    the page's address is its answer    it calls again; that call waits
    all others           an error with the page's address    by another call

Nothing has been put on disk or sent by then. A call that somebody else must sign in for is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.calls.credentials import Credentials, Proof
from gateway.calls.record import Attempt
from gateway.errors import GatewayError, UpstreamFailed
from gateway.limits import HELD_SECONDS, MOMENT_SECONDS
from gateway.model import Result, elicitation_modes, new_id
from gateway.store.cluster import Signals, wait_until_set
from gateway.store.credentials import CREDENTIAL, payload_of
from gateway.store.secrets import Seal
from gateway.upstream.protocol import ELICIT

FormAnswer = Mapping[str, Any]
PURPOSE = "sign-in-state/1"  # of the state that a client of 2026 hands back
QUESTION = "sign_in"  # the key of our question in an InputRequiredResult


@dataclass(slots=True)
class SignInQuestions:
    """Asks the people whose calls need it to sign in, and waits until they have."""

    credentials: Credentials
    seal: Seal
    signals: Signals
    draining: Callable[[], bool] = lambda: False

    async def ensure(self, attempt: Attempt, auth: Proof) -> Result | None:
        """None once there is a credential; a question where the client answers by calling again."""
        answer = self._take_answer(attempt)
        if (error := await self._sign_in_error(attempt, auth)) is None:
            return None
        caller = attempt.caller
        opens_pages = "url" in elicitation_modes(caller.capabilities) and not attempt.unattended
        link = error.details.get("sign_in_url")
        if link is None or not opens_pages:
            raise error
        if caller.era == "2026":
            return await self._ask_by_answer(attempt, auth, error, answer)
        if caller.ask is None:
            raise error
        question = {**_question(error), "elicitationId": new_id(time.time())}
        asking = asyncio.ensure_future(caller.ask(ELICIT, question))
        try:
            seconds = attempt.snapshot.permissions.timeout_seconds
            if await self._wait_for_sign_in(attempt, auth, seconds, asking):
                return None
        finally:
            asking.cancel()
        raise error

    async def _ask_by_answer(
        self, attempt: Attempt, auth: Proof, error: UpstreamFailed, answer: FormAnswer | None
    ) -> Result | None:
        if answer is not None:
            if not _is_accepted(answer):
                raise error
            if await self._wait_for_sign_in(attempt, auth, HELD_SECONDS):
                return None
        state = self.seal.seal_values(PURPOSE, *attempt.bound_to)
        input_requests = {QUESTION: {"method": ELICIT, "params": _question(error)}}
        return attempt.question_result("pending_confirmation", input_requests, state)

    def _take_answer(self, attempt: Attempt) -> FormAnswer | None:
        """The client's answer to our question about this call; None: it answers no such question.

        The answer is for the gateway alone: no server is told of it.
        """
        caller = attempt.caller
        values = self.seal.open_values(PURPOSE, caller.request_state)
        if values is None or values != attempt.bound_to:
            return None
        answer = (caller.input_responses or {}).get(QUESTION)
        caller.request_state = caller.input_responses = None
        return answer if isinstance(answer, Mapping) else {}

    async def _sign_in_error(self, attempt: Attempt, auth: Proof) -> UpstreamFailed | None:
        """Why the call can't go out yet; None: it can."""
        try:
            await self.credentials.obtain(auth, attempt.caller.principal)
        except UpstreamFailed as error:
            if error.code != "sign_in_required":
                raise
            return error
        return None

    async def _wait_for_sign_in(
        self,
        attempt: Attempt,
        auth: Proof,
        seconds: float,
        asking: asyncio.Future[Any] | None = None,
    ) -> bool:
        """Waits for the person at most `seconds`, while the client listens and does not decline."""
        account, ends = auth.account(attempt.principal), time.time() + seconds
        began = time.time()
        payload = payload_of(account.connection, account.owner)
        with self.signals.event_for(CREDENTIAL, payload) as signal:
            if asking is not None:
                asking.add_done_callback(lambda _: signal.set())
            while not attempt.caller.is_gone() and not self.draining() and not _is_declined(asking):
                if await self._sign_in_error(attempt, auth) is None:
                    return True
                if (seconds_left := ends - time.time()) <= 0:
                    return False
                await _say_progress(attempt, time.time() - began, seconds)
                await wait_until_set(signal, min(seconds_left, MOMENT_SECONDS))
        return False


async def _say_progress(attempt: Attempt, waited: float, seconds: float) -> None:
    if attempt.caller.progress is not None:
        text = f"Waiting for a person to sign in to {attempt.tool.connection}"
        await attempt.caller.progress(round(waited, 1), seconds, text)


def _question(error: GatewayError) -> dict[str, Any]:
    text = f"{error.message} Open the page to sign in; the call goes on when you are back."
    return {"mode": "url", "message": text, "url": error.details["sign_in_url"]}


def _is_declined(asking: asyncio.Future[Any] | None) -> bool:
    if asking is None or not asking.done():
        return False
    return asking.cancelled() or asking.exception() is not None or not _is_accepted(asking.result())


def _is_accepted(answer: object) -> bool:
    return isinstance(answer, Mapping) and answer.get("action") == "accept"
