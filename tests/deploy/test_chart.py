"""The Helm chart: Helm renders it, and Kubernetes' schemas accept the result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from openai_cpu_server.api.admin.health import GATEWAY_METRICS_PATH
from openai_cpu_server.config.settings import Settings
from tests.deploy import ROOT
from tests.lazy import Lazy

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

helm, kubernetes_validate = Lazy("helm_python"), Lazy("kubernetes_validate")

CHART = ROOT / "deploy" / "chart"
LLM_D = ROOT / "deploy" / "llm-d"
KUBERNETES = ("1.27", "1.34")
"""The oldest version that the chart names, and a new one."""
ALL_ON: dict[str, Any] = {
    **{name: {"enabled": True} for name in ("autoscaling", "networkPolicy", "serviceMonitor")},
    **{name: {"enabled": True} for name in ("podDisruptionBudget", "prometheusRule", "grafanaDashboard")},
    "ingress": {"enabled": True, "host": "llm.example", "tlsSecret": "certificate"},
    "models": {"claim": {"create": True, "storageClassName": "shared"}},
    **{f"{name}Secret": name for name in ("keys", "environment")},
    "env": [{"name": "OCS_THREADS", "value": "8"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "image": {"pullSecrets": [{"name": "pull"}]},
}
_PROMETHEUS_KINDS = ("ServiceMonitor", "PrometheusRule")


@pytest.fixture(scope="module")
def chart() -> Any:
    with helm.Chart.load(str(CHART)) as chart:
        yield chart


def manifests(chart: Any, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the values render, without NOTES.txt."""
    rendered = chart.render(dict(values), name="llm", namespace="ai")
    texts = [text for path, text in rendered.items() if path.endswith(".yaml")]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest]


def manifest_of(chart: Any, values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [manifest for manifest in manifests(chart, values) if manifest["kind"] == kind]
    return found


def pod(chart: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return manifest_of(chart, values, "Deployment")["spec"]["template"]


@pytest.mark.parametrize("values", [{}, ALL_ON], ids=["defaults", "everything"])
def test_helm_and_kubernetes_accept_it(chart: Any, values: dict[str, Any]) -> None:
    report = helm.lint(str(CHART), values, strict=True)
    messages = [message["error"] for message in report["messages"]]
    assert (report["errors"], messages) == ([], ["icon is recommended"])
    rendered = manifests(chart, values)
    for manifest in rendered:
        for version in KUBERNETES if manifest["kind"] not in _PROMETHEUS_KINDS else ():
            kubernetes_validate.validate(manifest, version, strict=True)
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered]
    assert len(set(names)) == len(names)
    if values:
        assert {kind for kind, _ in names} >= {"HorizontalPodAutoscaler", "Ingress", *_PROMETHEUS_KINDS}


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"config": {name: value}}
            for name, value in (("port", 9000), ("api_key", "x"), ("ssl_certfile", "/x"))
        ),
        *({"image": {"digest": digest}} for digest in ("latest", "sha256:abc")),
        {"image": {"repo": "x"}},
        {"replica": 2},
        {"tmp": {"sizeLimit": ""}},
        {"networkPolicy": {"egress": {}}},
    ],
)
def test_wrong_values_are_refused(chart: Any, wrong: dict[str, Any]) -> None:
    assert set(chart.values) <= set(chart.schema["properties"])
    with pytest.raises(helm.HelmError):
        chart.validate_schema(wrong)


def test_options_become_the_servers_file(chart: Any) -> None:
    options: dict[str, Any] = {"model": ["demo", "small=/models/a.gguf"], "stall_ms": 300.5, "ctx_size": 8192}
    options |= {"lenient": True, "kv_type": "q8_0"}
    values = {"config": options, "extraConfig": '[aliases]\nfast = "small"'}
    written = tomllib.loads(manifest_of(chart, values, "ConfigMap")["data"]["server.toml"])
    defaults = {"drain_seconds": 60, "log_format": "json", "jobs_db": "none"}
    assert written == {**options, **defaults, "aliases": {"fast": "small"}}
    assert isinstance(written["ctx_size"], int)
    assert set(written) <= set(Settings.model_fields)
    same, nine, other = (
        pod(chart, values)["metadata"]["annotations"]["checksum/config"]
        for values in ({}, {"replicas": 9}, {"config": {"ctx_size": 1024}})
    )
    assert same == nine != other, "other options make other pods"


def test_a_pod_gets_cores_of_its_own_and_can_do_little(chart: Any) -> None:
    spec = pod(chart, {})["spec"]
    (container,) = spec["containers"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]  # "Guaranteed"
    assert resources["limits"]["cpu"].isdecimal()  # as the static CPU manager requires
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    assert container["securityContext"] == {**confined, "capabilities": {"drop": ["ALL"]}}
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for values in ({}, ALL_ON, {"tmp": {"sizeLimit": "1Gi"}}):
        volumes = pod(chart, values)["spec"]["volumes"]
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in volumes if "emptyDir" in volume]
        assert (len(sizes), all(sizes)) == (2, True), "a pod could fill the disk of its node"


def test_values_become_the_pods_settings(chart: Any) -> None:
    digest, claim = f"sha256:{'a' * 64}", {"persistentVolumeClaim": {"claimName": "data"}}
    image = {"repository": "ocs", "tag": "1", "digest": digest}
    values = {"config": {"drain_seconds": 90.5}, "preStopSleepSeconds": 7, "image": image}
    spec = pod(chart, {**values, "data": {"volume": claim}})["spec"]
    (container,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] >= 90.5 + 7
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert container["image"] == f"ocs:1@{digest}"
    assert {"name": "data", **claim} in spec["volumes"]


def test_batch_work_does_not_scale_pods_up(chart: Any) -> None:
    (metric,) = manifest_of(chart, ALL_ON, "HorizontalPodAutoscaler")["spec"]["metrics"]
    interactive = {"matchLabels": {"priority": "interactive"}}
    assert metric["pods"]["metric"] == {"name": "ocs_requests_waiting", "selector": interactive}


def test_pods_connect_only_to_named_destinations(chart: Any) -> None:
    enabled = {"enabled": True}
    policy = manifest_of(chart, {"networkPolicy": enabled}, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (names,) = policy["egress"]
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    redis = {"to": [{"podSelector": {"matchLabels": {"app": "redis"}}}], "ports": [{"port": 6379}]}
    policy = manifest_of(chart, {"networkPolicy": {**enabled, "egress": [redis]}}, "NetworkPolicy")["spec"]
    assert policy["egress"] == [names, redis]


def test_the_notes_request_keys_until_there_are_some(chart: Any) -> None:
    for values in ({}, {"keysSecret": "keys"}, {"environmentSecret": "environment"}):
        rendered = chart.render(values, name="llm", namespace="ai")
        (notes,) = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
        assert ("the server has no keys" in notes, "keysSecret=" in notes) == (not values, not values)


def test_prometheus_and_grafana_get_alerts_and_dashboard_as_they_are(chart: Any) -> None:
    rules = manifest_of(chart, ALL_ON, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "alerts.yml").read_text())
    monitor = manifest_of(chart, ALL_ON, "ServiceMonitor")["spec"]
    service = manifest_of(chart, ALL_ON, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    # The alert ServerDown queries this job.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "openai-cpu-server"
    maps = [manifest for manifest in manifests(chart, ALL_ON) if manifest["kind"] == "ConfigMap"]
    (dashboard,) = [found["data"] for found in maps if "grafana_dashboard" in found["metadata"]["labels"]]
    written = json.loads(dashboard["openai-cpu-server.json"])
    assert written == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_llm_ds_router_and_the_gateways_pool_find_the_pods(chart: Any) -> None:
    values = yaml.safe_load((LLM_D / "server.values.yaml").read_text())
    chart.validate_schema(values)
    labels = pod(chart, values)["metadata"]["labels"]
    router = yaml.safe_load((LLM_D / "router.values.yaml").read_text())["router"]
    assert router["modelServers"]["matchLabels"].items() <= labels.items()
    config = yaml.safe_load(router["epp"]["pluginsCustomConfig"][router["epp"]["pluginsConfigFile"]])
    (profile,) = config["schedulingProfiles"]
    used = {plugin["pluginRef"] for plugin in profile["plugins"]}
    sources = {"approx-prefix-cache-producer", "metrics-data-source", "core-metrics-extractor"}
    assert used | sources == {plugin["type"] for plugin in config["plugins"]}
    (scraped,) = [p["parameters"]["path"] for p in config["plugins"] if p["type"] == "metrics-data-source"]
    assert scraped == GATEWAY_METRICS_PATH
    pool, route = yaml.safe_load_all((ROOT / "deploy" / "gateway-api" / "pool.yaml").read_text())
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {
        port["containerPort"]
        for container in pod(chart, values)["spec"]["containers"]
        for port in container["ports"]
    }
    assert {port["number"] for port in pool["spec"]["targetPorts"]} <= ports
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])
