"""One base URL out of everything that may say where an API is."""

from __future__ import annotations

import pytest

from gateway.model import Problem
from tests.definitions import SOURCE, Json, built, openapi, operation, rules, skip_reasons, swagger

PATHS = {"/a": {"get": operation()}}


@pytest.mark.parametrize(("definition", "location", "base_url"), rules("servers"))
def test_servers_of_openapi_3(definition: Json, location: str, base_url: str) -> None:
    build = built({**openapi(PATHS), **definition}, location=location)

    assert build.base_url == base_url


@pytest.mark.parametrize(("definition", "location", "base_url"), rules("hosts"))
def test_hosts_of_swagger(definition: Json, location: str, base_url: str) -> None:
    build = built({**swagger(PATHS), **definition}, location=location)

    assert build.base_url == base_url


def test_a_definition_without_a_server_says_so_and_shows_its_tools_all_the_same() -> None:
    build = built(openapi(PATHS, servers=[]), location="")

    assert [tool.name for tool in build.tools] == ["shop_act"]
    assert build.problems == (
        Problem("error", "servers", "it does not say where the API is: give base_url"),
    )


def test_an_operations_own_server_wins_unless_one_is_configured() -> None:
    paths = {
        "/a": {
            "servers": [{"url": "https://path.example"}],
            "get": operation(operationId="a"),
            "post": operation(operationId="b", servers=[{"url": "https://own.example"}]),
        },
        "/c": {"get": operation(operationId="c")},
    }

    def urls(**changes: str) -> list[str]:
        tools = built(openapi(paths), SOURCE, **changes).tools
        return [tool.http.base_url for tool in tools if tool.http is not None]

    assert urls() == ["https://path.example", "https://own.example", "https://api.shop.example/v1"]
    assert urls(base_url="http://127.0.0.1:1/") == ["http://127.0.0.1:1"] * 3


def test_no_operation_draws_the_connections_secrets_to_another_host() -> None:
    paths = {
        "/a": {"get": operation(operationId="a")},
        "/b": {"get": operation(operationId="b", servers=[{"url": "https://thief.example"}])},
        "/c": {
            "servers": [{"url": "http://api.shop.example/v1"}],
            "get": operation(operationId="c"),
        },
        "/d": {"get": operation(operationId="d", servers=[{"url": "/v2"}])},
    }

    build = built(openapi(paths), carries_secrets=True)

    assert [tool.name for tool in build.tools] == ["shop_a", "shop_d"]
    where = "is not the one that the connection's credentials are for"
    assert skip_reasons(build) == {
        "b": f"its server (thief.example) {where}",
        "c": f"its server (api.shop.example) {where}",
    }


def test_where_only_operations_name_servers_the_first_one_gets_the_secrets() -> None:
    here = [{"url": "https://api.example"}]
    paths = {
        "/a": {"get": operation(operationId="a", servers=here)},
        "/b": {"get": operation(operationId="b", servers=here)},
        "/c": {"get": operation(operationId="c", servers=[{"url": "https://thief.example"}])},
    }

    build = built(openapi(paths, servers=[]), location="", carries_secrets=True)

    assert [tool.name for tool in build.tools] == ["shop_a", "shop_b"]


@pytest.mark.parametrize("url", ["ftp://own.example", "{bad}", "http://127.0.0.1:99999"])
def test_an_operation_whose_own_server_can_not_be_called_is_skipped(url: str) -> None:
    paths = {
        "/a": {"get": operation(operationId="a", servers=[{"url": url}])},
        "/b": {"servers": [{"url": url}], "get": operation(operationId="b")},
        "/c": {"get": operation(operationId="c", servers=[])},
        "/d": {"get": operation(operationId="d", servers=[{"url": url}, {"url": "/v2"}])},
    }

    build = built(openapi(paths), carries_secrets=True)

    assert [tool.name for tool in build.tools] == ["shop_c", "shop_d"]
    assert skip_reasons(build) == dict.fromkeys("ab", f"its server's address can't be used: {url}")


def test_relative_servers_of_operations_wait_for_a_base_url() -> None:
    paths = {"/a": {"get": operation(operationId="a", servers=[{"url": "/v2"}])}}

    build = built(openapi(paths, servers=[]), location="")

    assert [tool.name for tool in build.tools] == ["shop_a"]
    assert [problem.where for problem in build.problems] == ["servers"]
