"""The examples in deploy/ hold together: each configuration passes `gateway check`, what one part
names is there in the other, and the dashboard asks for figures that the gateway has."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.callers import api
from tests.configs import LOCAL, principal, table
from tests.conftest import GatewayMaker
from tests.processes import gateway_command

DEPLOY = Path(__file__).parents[1] / "deploy"
CONFIG_PLACE = "/etc/gateway/config.toml"
STATE_PLACE = "/var/lib/gateway"


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def compose(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text(name))
    return found


def kubernetes() -> dict[str, dict[str, Any]]:
    """The objects by their kind."""
    documents = list(yaml.safe_load_all(text("kubernetes.yaml")))
    return {each["kind"]: each for each in documents}


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]  # names as they are written
    found.read_string(text("single/gateway.service"))
    return found


def container() -> dict[str, Any]:
    [found] = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def examples() -> dict[str, tuple[str, set[str]]]:
    """The configuration of each example, and the variables that it says to set."""
    named_for_secret = re.findall(r"--from-literal=([A-Z0-9_]+)=", text("kubernetes.yaml"))
    written_in_unit = re.findall(r"\b([A-Z0-9_]{4,})=", text("single/gateway.service"))
    several, single = (compose(name)["services"]["gateway"]["environment"] for name in COMPOSED)
    return {
        "compose": (text("config.toml"), {*several}),
        "kubernetes": (
            kubernetes()["ConfigMap"]["data"]["config.toml"],
            {*named_for_secret, *(each["name"] for each in container()["env"])},
        ),
        "single": (text("single/config.toml"), {*single}),
        "systemd": (text("single/config.toml"), {*written_in_unit}),
    }


COMPOSED = ("compose.yaml", "single/compose.yaml")


@pytest.mark.parametrize("name", ["kubernetes", "systemd"])  # the other two have the same files
async def test_the_configuration_passes_check_with_the_variables_that_the_example_names(
    name: str, tmp_path: Path
) -> None:
    config, named = examples()[name]
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    needed = {*re.findall(r"\$\{([A-Z0-9_]+)\}", config)}
    command = ("check", "--config", "config.toml")
    code, _, said = await gateway_command(*command, cwd=tmp_path)
    assert code == 2
    assert {*re.findall(r"variable ([A-Z0-9_]+) is not set", said)} == needed
    values = dict.fromkeys(named, "0" * 64)
    values |= {"PUBLIC_URL": "http://x", "POSTGRES_HOST": "127.0.0.1:9"}  # where there is no store
    code, said, _ = await gateway_command(*command, cwd=tmp_path, **values)
    assert (code, "fine (0 connections, 1 principals, 0 bundles)" in said) == (0, True), said


def test_every_variable_that_a_configuration_needs_is_named_by_its_example() -> None:
    found = examples()
    for name, (config, named) in found.items():
        assert (name, {*re.findall(r"\$\{([A-Z0-9_]+)\}", config)} - named) == (name, set())
        settings = tomllib.loads(config)
        is_shared = settings["store"]["url"].startswith("postgresql:")
        assert not is_shared or "GATEWAY_SECRET_KEY" in named, name
        assert settings["server"]["port"] == 8080
    assert found["kubernetes"][0] == found["compose"][0]  # one text, in two places


def test_the_parts_for_kubernetes_agree() -> None:
    parts, port = kubernetes(), container()["ports"][0]
    assert {kind: part["apiVersion"] for kind, part in parts.items()} == {
        "ConfigMap": "v1",
        "Deployment": "apps/v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "HorizontalPodAutoscaler": "autoscaling/v2",
        "Ingress": "networking.k8s.io/v1",
    }
    assert {part["metadata"]["name"] for part in parts.values()} == {"gateway"}
    spec = {kind: part.get("spec", {}) for kind, part in parts.items()}
    template = spec["Deployment"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert spec[kind]["selector"]["matchLabels"] == labels
    assert spec["Service"]["selector"] == labels
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    target = spec["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gateway"}
    assert "replicas" not in spec["Deployment"]  # an edit would undo what the autoscaler decided
    assert spec["HorizontalPodAutoscaler"]["minReplicas"] > 1
    assert port == {"containerPort": 8080, "name": "http"}
    [served] = spec["Service"]["ports"]
    assert (served["name"], served["targetPort"]) == ("http", port["name"])
    scraped = template["metadata"]["annotations"]
    assert (scraped["prometheus.io/port"], scraped["prometheus.io/path"]) == ("8080", "/metrics")
    probes = {k: v["httpGet"] for k, v in container().items() if k.endswith("Probe")}
    assert {each["port"] for each in probes.values()} == {port["name"]}
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert {*probes} == {"startupProbe", "livenessProbe", "readinessProbe"}


def test_kubernetes_mounts_what_there_is_and_the_ingress_leads_to_the_public_url() -> None:
    parts = kubernetes()
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == parts["ConfigMap"]["metadata"]["name"]
    # The whole folder: a single file that is mounted does not change while the pod runs.
    assert f"{mounts['config']}/{next(iter(parts['ConfigMap']['data']))}" == CONFIG_PLACE
    assert not any("subPath" in each for each in container()["volumeMounts"])
    ingress = parts["Ingress"]["spec"]
    [rule], [tls] = ingress["rules"], ingress["tls"]
    env = {each["name"]: each["value"] for each in container()["env"]}
    public = urlsplit(env["PUBLIC_URL"])
    assert (public.scheme, [public.hostname], public.hostname) == (
        "https",
        tls["hosts"],
        rule["host"],
    )
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "gateway", "port": {"name": "http"}}
    stops = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    drains = tomllib.loads(parts["ConfigMap"]["data"]["config.toml"])["server"]["shutdown_seconds"]
    assert pod["terminationGracePeriodSeconds"] > stops + drains


@pytest.mark.parametrize("name", COMPOSED)
def test_compose_mounts_what_there_is_and_waits_long_enough(name: str) -> None:
    whole = compose(name)
    service, folder = whole["services"]["gateway"], (DEPLOY / name).parent
    dockerfile = (folder / service["build"]["context"]).resolve() / service["build"]["dockerfile"]
    assert dockerfile == DEPLOY / "Dockerfile"
    assert f'CMD ["serve", "--config", "{CONFIG_PLACE}"]' in text("Dockerfile")
    mounts = [each.split(":") for each in service["volumes"]]
    assert [".", "/etc/gateway", "ro"] in mounts and (folder / "config.toml").exists()
    named = {m[0] for s in whole["services"].values() for m in map(_mount, s.get("volumes", []))}
    assert {each for each in named if not each.startswith(".")} == {*whole["volumes"]}
    settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    assert (
        int(service["stop_grace_period"].removesuffix("s")) > settings["server"]["shutdown_seconds"]
    )
    assert f":{settings['server']['port']}/readyz" in service["healthcheck"]["test"][-1]
    if settings["store"]["url"].startswith("sqlite"):
        assert ["state", STATE_PLACE] in mounts and STATE_PLACE in text("Dockerfile")


def _mount(line: str) -> list[str]:
    return line.split(":")


def test_the_unit_runs_the_configuration_and_keeps_its_state_where_it_may_write() -> None:
    service, settings = unit()["Service"], tomllib.loads(text("single/config.toml"))
    assert service["ExecStart"].endswith(f"gateway serve --config {CONFIG_PLACE}")
    assert f"/var/lib/{service['StateDirectory']}" == STATE_PLACE
    assert settings["store"]["url"].startswith(f"sqlite:///{STATE_PLACE}/")
    assert settings["store"]["secret_key_file"].startswith(f"{STATE_PLACE}/")
    assert int(service["TimeoutStopSec"]) > settings["server"]["shutdown_seconds"]
    assert service["Type"] == "exec"  # the gateway does not notify systemd
    assert service["RestartPreventExitStatus"] == "2"


async def test_the_dashboard_asks_for_figures_that_there_are(make_gateway: GatewayMaker) -> None:
    people = principal("ann", admin=True)
    gateway = await make_gateway(table("demo", enabled=True) + people + LOCAL)
    async with api(gateway.url, "ann") as ann:
        for id in (1, 404):
            await ann.call("demo_get_book", id=id)
        _, exported = await ann("GET", "//metrics")
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exported):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    dashboard = json.loads(text("grafana.json"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in asked:
        [name] = {*re.findall(r"\bgateway_[a-z_]+", expression)}
        assert name in labels, expression
        by = re.findall(r"by \(([a-z, ]+)\)", expression)
        used = {label for group in by for label in group.split(", ")}
        used |= {*re.findall(r"([a-z]+)=~?\"", expression)}
        assert used <= labels[name] | {"job", "instance"}, expression
    shown = {name for expression in asked for name in re.findall(r"\bgateway_[a-z_]+", expression)}
    plain = {name for name in labels if not name.endswith(("_created", "_sum", "_count"))}
    assert shown == plain  # nothing that is exported is missing
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len({*ids})
