"""A conversation with one upstream: what is the same whatever carries its messages.

One request is answered by a run of messages: progress and notices, the upstream's own questions, at
last the answer. A question that names no request is only put to a caller who is surely meant: the
sole one whose request may ask. While a person thinks, a request's time does not run out; each word
of progress gives it its seconds again, up to the longest it may take.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import structlog
from mcp_types import METHOD_NOT_FOUND

from gateway.errors import GatewayError, UpstreamFailed
from gateway.limits import LISTEN_SECONDS, MAX_PENDING, MAX_QUOTE_CHARS, MAX_ROUNDS, REST_SECONDS
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.naming import visible
from gateway.upstream import protocol
from gateway.upstream.protocol import NO_HOOKS, Ask, EraChoice, Hooks, Notice, Peer, RpcMessage

Sharing = Literal["shared", "principal"]


class Listing(NamedTuple):
    """A server's description of itself, and whether all principals share one session with it."""

    contents: dict[str, Any]  # its tools and its instructions
    session: Sharing | None


SendParams = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ELICITATION_DONE = "notifications/elicitation/complete"
QUESTIONS = (protocol.ELICIT, "sampling/createMessage", "roots/list")
QUESTION = "question"  # the key given to a question that comes without one
NOT_OFFERED = "asks for something that this client does not offer"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The terms on which one upstream is reached: another value means another session."""

    name: str  # as messages and logs call it
    transport: Literal["http", "stdio"] = "http"
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    lazy: bool = False
    session: Sharing | None = None  # None: each principal's own, if the upstream keeps state
    protocol: EraChoice = "auto"
    tls: TlsFiles = NO_TLS_FILES
    timeout_seconds: float = 30.0
    max_call_seconds: float = 600.0  # while a call tells of its progress


class Session(ABC):
    """A conversation; a transport says how messages are sent, and how a request is answered."""

    def __init__(self, upstream: Upstream, notice: Notice, offers: Mapping[str, Any]) -> None:
        self.name = upstream.name
        self.peer = protocol.GREETING
        self.lost = asyncio.Event()
        self._upstream = upstream
        self._notice = notice
        self._offers = offers  # to an upstream that is told once a session
        self._ids = itertools.count(1)
        self._interactive: dict[int, Hooks] = {}  # requests under way that may ask their callers
        self._background: set[asyncio.Task[None]] = set()

    async def connect(self, last_era: protocol.PeerEra | None, seconds: float) -> None:
        """Meets the upstream; afterwards requests can be made."""
        choice = self._upstream.protocol
        peer = await protocol.negotiate(self._exchange, last_era, seconds, choice, self._offers)
        self.peer = replace(peer, keeps_state=self._keeps_state())
        if self.peer.era == "2025":
            await self._tell("notifications/initialized", {})

    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request."""
        result = await self._exchange(method, params, self.peer, seconds, hooks)
        return protocol.without_envelope(result, self.peer.era)

    async def listen(
        self, on_open: Callable[[], None], filters: Mapping[str, Any] = protocol.LISTEN_FILTER
    ) -> None:
        """Passes the upstream's notices on until its stream ends, or has been open for long."""
        if self.peer.era == "2025":
            return await self._listen_unasked(on_open)

        def notice(method: str, params: Mapping[str, Any]) -> None:
            if method == ACKNOWLEDGED:
                on_open()

        params, hooks = {"notifications": filters}, Hooks(notice=notice)
        try:
            await self._exchange("subscriptions/listen", params, self.peer, LISTEN_SECONDS, hooks)
        except protocol.RpcFailed as error:
            raise protocol.NotOffered from error if error.rpc_code == METHOD_NOT_FOUND else error
        except UpstreamFailed as error:
            if error.code != "upstream_timeout":  # then anew: a stream may have gone deaf
                raise

    async def close(self) -> None:
        """Ends the session, whether the upstream hears that or not."""
        if self._background:  # tasks that may still tell the upstream of a call given up
            await asyncio.wait(self._background, timeout=REST_SECONDS)
        await end_tasks(*self._background)
        self.lost.set()

    @abstractmethod
    def _keeps_state(self) -> bool:
        """Whether the upstream remembers this session."""

    async def _listen_unasked(self, on_open: Callable[[], None]) -> None:
        """Up to 2025-11-25 notices are not asked for."""
        raise protocol.NotOffered

    @abstractmethod
    async def _send(self, message: RpcMessage) -> None:
        """Sends a message that has no answer of its own."""

    @abstractmethod
    async def _answer(
        self, message: RpcMessage, peer: Peer, hooks: Hooks, limit: asyncio.Timeout, ends: float
    ) -> dict[str, Any]:
        """Sends a request and reads its answer; sets the limit to the time `ends`."""

    async def _exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        peer: Peer,
        seconds: float,
        hooks: Hooks = NO_HOOKS,
    ) -> dict[str, Any]:
        message = protocol.request_message(next(self._ids), method, params, peer, hooks)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as limit:
                if hooks.progress is not None or hooks.ask is not None:
                    hooks = extend_on_progress(
                        hooks, limit, seconds, self._upstream.max_call_seconds
                    )
                if method in protocol.INTERACTIVE:
                    self._interactive[message["id"]] = hooks
                return await self._answer(message, peer, hooks, limit, began + seconds)
        except TimeoutError:
            self._give_up(message, peer)
            elapsed = asyncio.get_running_loop().time() - began
            raise protocol.timeout_error(self.name, elapsed, sent=True) from None
        except (asyncio.CancelledError, UpstreamFailed) as error:
            if not isinstance(error, UpstreamFailed) or error.code == "upstream_timeout":
                self._give_up(message, peer)
            raise
        finally:
            self._interactive.pop(message["id"], None)

    async def _read_result(
        self, messages: AsyncIterator[RpcMessage], hooks: Hooks
    ) -> dict[str, Any]:
        """The result that ends a run of messages."""
        async for message in messages:
            method, params = message.get("method"), protocol.mapping(message.get("params"))
            if not isinstance(method, str):
                return protocol.outcome(message, self.name)
            if "id" in message:
                await self._send(await answer(message, hooks.ask))
            elif method == "notifications/progress":
                await _pass_progress(params, hooks.progress)
            elif method in (protocol.LOGGED, ACKNOWLEDGED, ELICITATION_DONE):  # for its caller
                if hooks.notice is not None:
                    hooks.notice(method, params)
            else:
                self._notice(method, params)
        raise protocol.unreachable_error(self.name, "closed the answer's stream early", sent=True)

    def _handle_stray(self, message: RpcMessage) -> None:
        """Handles a message that came outside any request's own stream."""
        method, params = message["method"], protocol.mapping(message.get("params"))
        sole = next(iter(self._interactive.values())) if len(self._interactive) == 1 else NO_HOOKS
        if "id" in message:
            self._run_soon(self._respond(message, sole.ask))
        elif method not in (protocol.LOGGED, ELICITATION_DONE) or not self._interactive:
            self._notice(method, params)
        elif sole.notice is not None:  # it may be about that request: it is for its caller alone
            sole.notice(method, params)

    async def _respond(self, message: RpcMessage, ask: Ask | None) -> None:
        await self._send(await answer(message, ask))

    async def _tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _give_up(self, message: RpcMessage, peer: Peer) -> None:
        if message["method"] not in ("initialize", "server/discover"):
            params = {"requestId": message["id"], "reason": "The caller no longer waits"}
            self._run_soon(self._tell("notifications/cancelled", params))

    def _run_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs work without holding up the reader; work beyond a bound is dropped."""
        if len(self._background) >= MAX_PENDING:
            work.close()
            log.warning("upstream_message_dropped", upstream=self.name)
            return
        task = asyncio.create_task(self._run_quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run_quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except GatewayError as error:
            log.info("upstream_not_told", upstream=self.name, error=error.message)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks, and returns when they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Waits for an event, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def extend_on_progress(
    hooks: Hooks, limit: asyncio.Timeout, seconds: float, longest: float
) -> Hooks:
    """The hooks of a request that has `seconds`, and as many again with each word of progress."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + longest

    async def prolong(amount: float, total: float | None, text: str | None) -> None:
        until = limit.when()
        if until is not None:  # else a person thinks
            limit.reschedule(max(until, min(loop.time() + seconds, ends)))
        if hooks.progress is not None:
            await hooks.progress(amount, total, text)

    async def stop_clock_while_asking(questions: Mapping[str, Any]) -> Mapping[str, Any]:
        assert hooks.ask is not None
        until, began = limit.when(), loop.time()
        limit.reschedule(None)
        try:
            return await hooks.ask(questions)
        finally:
            limit.reschedule(None if until is None else until + loop.time() - began)

    progress, ask = hooks.progress and prolong, hooks.ask and stop_clock_while_asking
    return hooks._replace(progress=progress, ask=ask)


async def _pass_progress(params: Mapping[str, Any], progress: protocol.Progress | None) -> None:
    amount, total, text = params.get("progress"), params.get("total"), params.get("message")
    if progress is not None and isinstance(amount, int | float):
        await progress(
            amount,
            total if isinstance(total, int | float) else None,
            visible(text)[:MAX_QUOTE_CHARS] if isinstance(text, str) else None,
        )


async def answer(message: RpcMessage, ask: Ask | None) -> RpcMessage:
    """Our response to a request of the upstream: a question, a ping, or what we don't offer."""
    head = {"jsonrpc": "2.0", "id": message["id"]}
    method = message["method"]
    if method == "ping":
        return {**head, "result": {}}
    try:
        if method not in QUESTIONS:
            raise protocol.answer_error("The upstream", NOT_OFFERED)
        question = {QUESTION: {"method": method, "params": protocol.mapping(message.get("params"))}}
        return {**head, "result": (await _ask_caller(question, ask, "The upstream"))[QUESTION]}
    except GatewayError as error:
        code = error.details.get("rpc_code", METHOD_NOT_FOUND)
        return {**head, "error": {"code": code, "message": error.message}}


async def ask_until_complete(
    send: SendParams, params: Mapping[str, Any], ask: Ask | None, upstream: str
) -> dict[str, Any]:
    """Sends a request again with the answers it asks for, until its result is complete.

    A result that asks for nothing, or of a kind that nobody knows, is not sent for again: the
    request may have been carried out.
    """
    extra: dict[str, Any] = {}
    for turn in range(MAX_ROUNDS):
        result = await send({**params, **extra})
        kind, state = result.get("resultType"), result.get("requestState")
        if kind is None:
            return result
        questions = protocol.mapping(result.get("inputRequests"))
        extra = {"requestState": state} if isinstance(state, str) else {}
        if kind != "input_required" or not (questions or extra):
            raise protocol.unreadable_error(upstream, "sent a result that is not complete")
        if questions:
            extra["inputResponses"] = await _ask_caller(questions, ask, upstream)
        else:
            await asyncio.sleep(min(0.05 * 2**turn, REST_SECONDS))
    raise protocol.unreadable_error(
        upstream, f"asked for more input {MAX_ROUNDS} times and never finished"
    )


async def _ask_caller(
    questions: Mapping[str, Any], ask: Ask | None, upstream: str
) -> Mapping[str, Any]:
    """The caller's answers, or ones that decline. Raises where none can decline."""
    action = "decline"
    if ask is not None:
        try:
            return await ask(questions)
        except GatewayError:
            raise
        except Exception as error:  # the client's side: whatever fails, the upstream is answered
            log.info("question_failed", error=type(error).__name__)
            action = "cancel"
    if any(protocol.mapping(each).get("method") != protocol.ELICIT for each in questions.values()):
        raise protocol.answer_error(upstream, NOT_OFFERED)
    return dict.fromkeys(questions, {"action": action})
