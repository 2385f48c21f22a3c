"""Tasks for people: each with its place and the next step, the most urgent first.

The console shows them, /health tells them to admins, and `gateway doctor` uses those that need no
running gateway. Nothing is remembered: each look finds the problems of that moment, and a mended
problem is not found again. A problem that is only good to know (`info`) is no task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import SecretStr

from gateway.calls.credentials import account_of
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import Connection, is_per_user, people_sign_in
from gateway.config.file import RESTART
from gateway.config.settings import LOOPBACK_HOSTS
from gateway.limits import MAX_QUOTE_CHARS
from gateway.model import Principal, Problem, TlsFiles
from gateway.naming import cut
from gateway.outbound.certificates import Ending
from gateway.policy.access import may_know
from gateway.store.tables import Credential

TaskKind = Literal[
    "store", "approval", "configuration", "connection", "credential", "certificate", "change"
]
URGENCY: tuple[TaskKind, ...] = get_args(TaskKind)  # the order of tasks that are equally severe
# The step that makes up for a gap in a definition, by the place of the gap.
STEPS = {"servers": "Give base_url", "security": "Give credentials", "auth": "Sign in"}
# Host names that RFC 2606 reserves, and names that authors write in the place of their own.
_PLACEHOLDER = re.compile(
    r"(^|\.)(example(\.(com|org|net))?|invalid)$"
    r"|(^|[.-])your-?(api|app|company|domain|host|instance|org|server|tenant)([.-]|$)"
)
NOT_SECRET = frozenset(("type", "per", "grant", "scopes", "password"))


@dataclass(frozen=True, slots=True)
class Task:
    """One thing for a person to do."""

    kind: TaskKind
    severity: Literal["error", "warning"]
    what: str
    why: str
    fix: str
    href: str = ""  # the page of the console where it can be mended, or is shown
    where: str = ""  # the key in config.toml
    connection: str = ""

    def as_dict(self) -> dict[str, str]:
        """The task as /health tells it."""
        names = ("kind", "severity", "what", "why", "fix", "href", "where", "connection")
        return {name: value for name in names if (value := getattr(self, name))}


def sort_tasks(tasks: Iterable[Task]) -> list[Task]:
    """The tasks, the most urgent first: callers that wait, then errors, then warnings."""
    return sorted(
        tasks,
        key=lambda task: (
            task.severity != "error" and task.kind != "approval",
            URGENCY.index(task.kind),
            task.connection,
        ),
    )


def visible_tasks(tasks: Iterable[Task], snapshot: Snapshot, principal: Principal) -> list[Task]:
    """The tasks that a principal may know of: admins the gateway's, everyone their connections'.

    The gateway's own tasks may name any organization's settings: only their own admins read them.
    """
    names = {name for name, state in snapshot.connections.items() if may_know(principal, state)}
    for_all = ("connection", "credential")
    own = principal.admin and principal.organization is None
    return [
        task
        for task in tasks
        if (
            task.connection in names
            if task.connection
            else own or task.kind in ("approval", "store")
        )
        and (principal.admin or (task.kind in for_all and task.severity == "error"))
    ]


# --- connections ----------------------------------------------------------------------------------


def connection_tasks(state: ConnectionState) -> Iterator[Task]:
    """Tasks for the problems of a connection that its state tells of."""
    page, name = f"/console/connections/{state.name}", state.display_name
    about = {"connection": state.name, "where": f"connections.{state.name}"}
    errors = [each for each in state.problems if each.severity == "error"]
    if state.status == "disabled":
        return
    if state.status == "failing":
        why = errors[-1].message if errors else "It can't be reached."
        served = f" Its last {len(state.tools)} good tools are still served." if state.tools else ""
        words = cut(why, MAX_QUOTE_CHARS) + served
        yield Task(
            "connection", "error", f"{name} can't be read", words, "Look at it", page, **about
        )
    elif state.status == "unauthenticated":
        words = "Calls fail until somebody signs in there."
        yield Task(
            "credential", "error", f"{name} is not signed in", words, "Sign in", page, **about
        )
    yield from credential_tasks(state.name, state.settings, name)
    base_url = state.build.base_url if state.build else ""
    yield from host_tasks(state.name, state.settings, base_url, name)
    reported = errors[-1:] if state.status == "failing" else []
    other_problems = [each for each in state.problems if each not in reported]
    yield from problem_tasks(state.name, other_problems, name)


def credential_tasks(name: str, settings: Connection, display_name: str = "") -> Iterator[Task]:
    """Tasks for empty credentials, such as a ${VARIABLE} leaves that is set to nothing."""
    if not settings.is_active or is_per_user(settings.auth):
        return
    values = settings.auth.model_dump(exclude=set(NOT_SECRET))
    empty = [f"auth.{key}" for key, value in values.items() if _is_blank(value)]
    empty += [f"headers.{key}" for key, value in settings.headers.items() if _is_blank(value)]
    for key in empty:
        yield Task(
            "credential",
            "error",
            f"{display_name or name}: {key} is empty",
            "Calls go out without it, and will be refused there.",
            "Give a value, or set the variable that it comes from",
            f"/console/connections/{name}/edit",
            f"connections.{name}.{key}",
            name,
        )


def _is_blank(value: Any) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and text.strip().lower() in ("", "bearer", "basic", "token")


def host_tasks(
    name: str, settings: Connection, base_url: str, display_name: str = ""
) -> Iterator[Task]:
    """A task for a placeholder host in a definition: its calls lead nowhere.

    Authors leave `example.com` or their own machine there. A server with variables that have no
    value is a problem of the definition itself.
    """
    host, source = _host(base_url), _host(getattr(settings, "spec", "") or "")
    if _PLACEHOLDER.search(host):
        why = f"Calls go to {host}, which stands for the real host."
    elif host in LOOPBACK_HOSTS and source and source not in LOOPBACK_HOSTS:
        why = f"Calls go to {host}, the author's own machine: the definition is from {source}."
    else:
        return
    what, page = f"{display_name or name}: its host is a placeholder", "/console/connections"
    key, href = f"connections.{name}.base_url", f"{page}/{name}/edit"
    yield Task("connection", "error", what, why, "Give base_url", href, key, name)


def _host(url: str) -> str:
    """The host of an address, "" for a path or a definition that was put as text."""
    return (urlsplit(url).hostname or "").lower() if url.startswith(("http:", "https:")) else ""


def problem_tasks(name: str, problems: Iterable[Problem], display_name: str = "") -> Iterator[Task]:
    """Tasks for problems of a connection's settings and definition; the worst first."""
    page, about = f"/console/connections/{name}", {"connection": name}
    serious = sorted((p for p in problems if p.severity != "info"), key=lambda p: p.severity)
    listed = serious if len(serious) <= 4 else serious[:3]
    for problem in listed:
        what = f"A setting of {display_name or name} to correct"
        fix, href, where = "Correct it", f"{page}/edit", f"connections.{name}.{problem.where}"
        if not problem.configured:
            what, where = f"{display_name or name} has a problem", f"connections.{name}"
            fix, href = _step(problem, page)
        why = cut(f"{problem.where}: {problem.message}", MAX_QUOTE_CHARS)
        yield Task("connection", _severity(problem), what, why, fix, href, where, **about)
    if more := len(serious) - len(listed):
        what, why = f"{display_name or name}: {more} more", "Its page lists them all."
        yield Task("connection", "warning", what, why, "Read them", f"{page}#problems", **about)


def _severity(problem: Problem) -> Literal["error", "warning"]:
    return "error" if problem.severity == "error" else "warning"


def _step(problem: Problem, page: str) -> tuple[str, str]:
    """The step that mends a problem of a definition, and its page."""
    step = STEPS.get(problem.where)
    return (step, f"{page}/edit") if step else ("Look at it", f"{page}#problems")


def sign_in_tasks(
    states: Iterable[ConnectionState], shared: Mapping[str, Credential] | None
) -> Iterator[Task]:
    """Tasks for connections that an admin must sign in for everybody; None: that is unknown now."""
    for state in states if shared is not None else ():
        auth = state.settings.auth
        if (
            not people_sign_in(auth)
            or is_per_user(auth)
            or state.status in ("disabled", "unauthenticated")
        ):
            continue
        sign_in = (shared or {}).get(state.name)
        if sign_in is None or sign_in.refused or sign_in.binding != account_of(state, "").binding:
            what = f"Nobody has signed in to {state.display_name}"
            why = "Calls fail until an admin has, for everybody."
            if sign_in is not None:
                why = "What was given is not taken any more. " + why
            fix, href, where = "Sign in", "/console/access#sign-ins", f"connections.{state.name}"
            yield Task("credential", "error", what, why, fix, href, where, state.name)


# --- the gateway itself ---------------------------------------------------------------------------


def configuration_tasks(problem: str | None, problems: Iterable[Problem]) -> Iterator[Task]:
    """Tasks for an edit of config.toml that is not in force, and for rules there without effect."""
    if problem and problem.startswith(RESTART):
        keys = problem.removeprefix(RESTART)
        what, why = "The gateway needs a restart", f"Edited, and read at a start only: {keys}"
        yield Task("configuration", "warning", what, why, "Restart it", where=keys)
    elif problem:
        what = "config.toml was edited and can't be used"
        why = f"{cut(problem, MAX_QUOTE_CHARS)} The last good one stays in force."
        yield Task("configuration", "error", what, why, "Correct the file", where="config.toml")
    for rule in problems:
        what, fix, href = f"{rule.where} does not hold", "Look at it", "/console/access#rules"
        yield Task("configuration", _severity(rule), what, rule.message, fix, href, rule.where)


def group_tasks(problems: Iterable[Problem]) -> Iterator[Task]:
    """Tasks for lists of connections, such as Azure's, that can't be read."""
    for problem in problems:
        fix, href = "Look at [azure] in config.toml", "/console/connections"
        what = f"{problem.where} can't be read"
        yield Task("connection", "error", what, problem.message, fix, href, problem.where)


def approval_tasks(waiting: int) -> Iterator[Task]:
    """A task for the calls that wait for a person's decision."""
    if waiting:
        what = f"{waiting:,} calls wait" if waiting > 1 else "A call waits"
        why, page = "Without one they end by themselves, denied.", "/console/approvals"
        yield Task("approval", "warning", f"{what} for a decision", why, "Decide", page)


def change_tasks(tally: Mapping[str, int], states: Mapping[str, ConnectionState]) -> Iterator[Task]:
    """Tasks for changes of definitions that wait until an admin accepts them."""
    for name, count in tally.items():
        if name in states:
            noun = "changes" if count > 1 else "change"
            what = f"{count:,} {noun} of {states[name].display_name} held"
            why = "The last good version is served until you accept."
            href = f"/console/connections/{name}#changes"
            yield Task("change", "warning", what, why, "Compare", href, connection=name)


def ending_tasks(endings: Iterable[Ending], states: Iterable[ConnectionState]) -> Iterator[Task]:
    """Tasks for certificates that have ended, or soon will."""
    hosts = {state.build.base_url: state.name for state in states if state.build}
    for ending in endings:
        table, _, rest = ending.where.partition(".")
        name = rest.split(".")[0] if table == "connections" else ""
        if ending.where.startswith("https://"):
            names = [n for url, n in hosts.items() if f"{url}/".startswith(f"{ending.where}/")]
            name = names[0] if names else ""
        href = f"/console/connections/{name}/edit" if name else ""
        what = f"The certificate of {ending.where} {ending.words}"
        why = "Calls that need it fail from then on."
        severity: Literal["error", "warning"] = "error" if ending.is_over else "warning"
        fix = "Have it renewed"
        yield Task("certificate", severity, what, why, fix, href, ending.where, name)


def store_tasks(trouble: str, dropped: int) -> Iterator[Task]:
    """Tasks for a store that does not answer, or that lost records."""
    fix = "Look at the database, its disk and the log"
    if trouble:
        what, why = "The store can't be reached", f"It answers {trouble}: nothing is recorded."
        yield Task("store", "error", what, why, fix, where="store.url")
    if dropped:
        what = f"{dropped:,} records are lost"
        why = "The store was away or too slow while calls went on; the ledger lacks them."
        yield Task("store", "warning", what, why, fix, where="store.url")


def tls_tables(ca_file: str | None, connections: Mapping[str, Connection]) -> dict[str, TlsFiles]:
    """Every table of configuration that names certificates, by its key."""
    tables = {f"connections.{name}.tls": each.tls for name, each in connections.items()}
    return {"network": TlsFiles(ca_file=ca_file), **tables}
