"""The console for tests: over plain HTTP, and in a real browser that tolerates no mistake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from tests.configs import LOCAL, principal, token_of
from tests.conftest import GatewayMaker, Running, gateway_on

# The first draws in no window, in three quarters of the time.
CHROMIUMS = [*map(Path, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium"))]
CHROMIUM = next(filter(Path.exists, CHROMIUMS), CHROMIUMS[0])
PATIENCE_MS = 60_000  # a busy machine draws slowly; nothing here waits for time to pass
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--renderer-process-limit=1", "--in-process-gpu"),
)
TOKENS = {name: token_of(name) for name in ("root", "eve", "ann")}
DEMO = f"""
[auth]
mode = "none"
{LOCAL}
[permissions]
level = "execute_with_confirm"
timeout_seconds = 30
[demo]
enabled = true
"""
WITH_TOKENS = DEMO.replace('"none"', '"tokens"') + "".join(
    principal(name, admin=name != "ann") for name in TOKENS
)
# Runs nothing of ours: it only notes what the page's own policy refused.
NOTE_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', event =>
  console.error('policy violated: ' + event.violatedDirective + ' ' + event.blockedURI));
"""


@dataclass
class Visitor:
    """A client with cookies that knows the token of its forms."""

    http: httpx2.AsyncClient
    csrf: str = ""

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.http.get(path, **more)

    async def post(self, path: str, **fields: str) -> httpx2.Response:
        """A form, sent as a page's script does."""
        data = {"csrf": self.csrf, **fields}
        return await self.http.post(path, data=data, headers={"hx-request": "true"})

    async def sign_in(self, token: str = "") -> httpx2.Response:
        answer = await self.http.post("/console/sign-in", data={"token": token})
        if answer.status_code == 303:
            page = (await self.http.get("/console")).text
            self.csrf = page.split('{"X-CSRF-Token":"')[1].split('"')[0]
        return answer


@asynccontextmanager
async def visitor(gateway: Running) -> AsyncIterator[Visitor]:
    """Someone who is not signed in."""
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        yield Visitor(http)


@pytest.fixture
async def shop(make_gateway: GatewayMaker) -> Running:
    """A gateway with the demo, without tokens, that asks before writes."""
    return await make_gateway(DEMO)


@pytest.fixture
async def guarded(make_gateway: GatewayMaker) -> Running:
    """The same with tokens: two admins, root and eve, and ann."""
    return await make_gateway(WITH_TOKENS)


@pytest.fixture(scope="module")
async def module_shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """As `shop`, for all tests of a module that leave it as it was."""
    async with gateway_on(tmp_path_factory.mktemp("shop") / "config.toml", DEMO) as made:
        yield made


@pytest.fixture(scope="module")
async def module_guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """As `guarded`, for all tests of a module that leave it as it was."""
    async with gateway_on(tmp_path_factory.mktemp("guarded") / "config.toml", WITH_TOKENS) as made:
        yield made


SignedIn = Callable[..., Awaitable[Visitor]]


@pytest.fixture
async def signed_in() -> AsyncIterator[SignedIn]:
    """Makes visitors that are signed in."""
    async with AsyncExitStack() as stack:

        async def make(gateway: Running, name: str = "") -> Visitor:
            made = await stack.enter_async_context(visitor(gateway))
            answer = await made.sign_in(TOKENS.get(name, ""))
            assert answer.status_code == 303, answer.text
            return made

        yield make


@pytest.fixture
async def someone(shop: Running, signed_in: SignedIn) -> Visitor:
    """Who is signed in at the shop."""
    return await signed_in(shop)


@pytest.fixture
async def reader(module_shop: Running, signed_in: SignedIn) -> Visitor:
    """Who is signed in at the module's shop, and leaves it as it was."""
    return await signed_in(module_shop)


@dataclass
class Window:
    """A browser's tab, and everything in it that was not as it should be."""

    page: Page
    context: BrowserContext
    gateway: Running
    wrong: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.gateway.url

    async def open(self, path: str) -> None:
        """Loads a page of the console and waits until it is live."""
        await self.page.goto(f"{self.base}/console{path}")
        await self.live()

    async def live(self) -> None:
        """Waits until the page's stream stands."""
        await self.page.wait_for_selector("#live[data-state=on]", timeout=PATIENCE_MS)

    def watch(self) -> None:
        """Notes errors, refused loads and whatever is asked of any other place."""
        page, wrong = self.page, self.wrong
        said = "{0.text} {0.location[url]}".format
        page.on("console", lambda m: wrong.append(said(m)) if m.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda r: None if r.url.startswith(self.base + "/") else wrong.append(r.url[:200]),
        )


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser, where the machine has one."""
    if not CHROMIUM.exists():
        pytest.skip("needs a browser: apt-get install chromium-headless-shell")
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        await launched.close()


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as launched:
        yield launched


@asynccontextmanager
async def window_of(browser: Browser, gateway: Running, **options: Any) -> AsyncIterator[Window]:
    """A tab at this gateway; anything that goes wrong in it fails the test."""
    context = await browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_MS)
    await context.add_init_script(NOTE_VIOLATIONS)
    window = Window(await context.new_page(), context, gateway)
    window.watch()
    yield window
    await context.close()
    assert window.wrong == []


async def sign_in_at(window: Window) -> None:
    """Signs in where no token is needed."""
    await window.page.goto(f"{window.base}/console/sign-in")
    await window.page.click("text=Continue as local")
    await window.live()
