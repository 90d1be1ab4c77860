"""deploy/: every service is limited, checked and scalable, and the dashboard shows metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.config import ServiceSettings
from omnistage.observability import names
from omnistage.pipelines import GATEWAY
from omnistage.subjects import REPUBLISHED

SHOWN = (
    names.TIME_TO_FIRST_TOKEN,
    names.TIME_TO_FIRST_AUDIO,
    names.REAL_TIME_FACTOR,
    names.CLIENT_UNDERRUNS,
    names.QUEUE_DEPTH,
    names.QUEUE_WAIT,
    names.HOP_SECONDS,
    names.TENSOR_BYTES,
    names.BATCH_SIZE,
    names.STEP_SECONDS,
    names.ARENA_USED,
    names.REDELIVERIES,
    names.RESUMPTIONS,
    names.REFUSALS,
)
"""What an operator must see."""


def _yaml(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    return _yaml(root / "deploy" / "compose.yaml")


def test_every_container_has_limits_and_a_health_check(root: Path, compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert "mem_limit" in service, name
        assert service["restart"] == "unless-stopped", name
        dockerfile = root / service["build"]["dockerfile"] if "build" in service else None
        assert "healthcheck" in service or (dockerfile and "HEALTHCHECK" in dockerfile.read_text(encoding="utf-8")), (
            name
        )
        for needed, how in service.get("depends_on", {}).items():
            assert needed in compose["services"]
            assert how["condition"] in ("service_healthy", "service_started")


def test_stages_can_be_scaled(compose: dict[str, Any], services: list[str]) -> None:
    for name in services:
        service = compose["services"][name]
        assert "container_name" not in service
        assert "hostname" not in service
        assert "OMNISTAGE_INSTANCE" not in service["environment"]
        assert ("ports" in service) == (name == GATEWAY)
        assert "arena:/arena" in service["volumes"]


def test_the_environment_names_settings_that_exist(compose: dict[str, Any], services: list[str]) -> None:
    known = {f"OMNISTAGE_{name.upper()}" for name in ServiceSettings.model_fields}
    for name in services:
        if name != GATEWAY:
            assert set(compose["services"][name]["environment"]) <= known


def test_the_example_names_every_variable_and_its_default(root: Path) -> None:
    text = "".join(
        (root / "deploy" / name).read_text(encoding="utf-8") for name in ("compose.yaml", "compose.observability.yaml")
    )
    used = dict(re.findall(r"\$\{([A-Z_]+):?-([^}]*)\}", text))
    used.pop("OMNISTAGE_VERSION")
    example = dict(
        line.split("=", 1)
        for line in (root / "deploy" / ".env.example").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    assert example == used


def test_images_with_torch_take_its_build_for_cpus(root: Path, compose: dict[str, Any], services: list[str]) -> None:
    index = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    asked = compose["x-torch"]["PIP_EXTRA_INDEX_URL"]
    with_torch = []
    for name in services:
        done = subprocess.run(
            [sys.executable, root / "tools" / "third_party.py", "shared", f"services/{name}"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        if not re.search(r"^torch\b", done.stdout, re.MULTILINE):
            continue
        with_torch.append(name)
        text = (root / "services" / name / "Dockerfile").read_text(encoding="utf-8")
        assert f"ARG {index}\n" in text, name
        assert compose["services"][name]["build"]["args"]["PIP_EXTRA_INDEX_URL"] == asked, name
        # Downloaded checkpoints need a place that can be written.
        assert "HF_HOME=/models" in text
        assert "install -d -o 10001 -g 10001 /models" in text
        assert "models:/models" in compose["services"][name]["volumes"]
    assert sorted(with_torch) == ["codec", "talker", "thinker"]


def test_broker_and_tensor_server_ask_for_a_password_and_are_not_published(root: Path, compose: dict[str, Any]) -> None:
    conf = (root / "deploy" / "nats.conf").read_text(encoding="utf-8")
    users = conf[conf.index("authorization {") :]
    assert "password: $OMNISTAGE_BUS_PASSWORD" in users
    assert json.dumps(REPUBLISHED) in users
    assert "no_auth_user" not in conf
    valkey = compose["services"]["valkey"]["command"]
    assert valkey[valkey.index("--requirepass") + 1].startswith("${OMNISTAGE_REDIS_PASSWORD")
    for server in ("nats", "valkey"):
        assert "ports" not in compose["services"][server]
    for name in compose["services"].keys() - {"nats", "valkey"}:
        environment = compose["services"][name]["environment"]
        assert environment["OMNISTAGE_BUS_PASSWORD"].startswith("${OMNISTAGE_BUS_PASSWORD")
        assert "${OMNISTAGE_REDIS_PASSWORD" in environment["OMNISTAGE_REDIS_URL"]
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert all(port.startswith("${OMNISTAGE_BIND:-127.0.0.1}:") for port in published)


def test_images_run_without_privileges_or_tools(root: Path, services: list[str]) -> None:
    for service in services:
        text = (root / "services" / service / "Dockerfile").read_text(encoding="utf-8")
        build, final = text.split("\nFROM ")[1:]
        assert "-c constraints.txt" in build
        assert "USER 10001:10001" in final
        assert "org.opencontainers.image.version" in final
        assert "pip install" not in final
        assert "apt-get" not in final
        assert "OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE" in final


def test_images_carry_the_version_of_their_service(root: Path, services: list[str], compose: dict[str, Any]) -> None:
    for service in services:
        with (root / "services" / service / "pyproject.toml").open("rb") as file:
            version = tomllib.load(file)["project"]["version"]
        text = (root / "services" / service / "Dockerfile").read_text(encoding="utf-8")
        assert f"ARG VERSION={version}\n" in text
        assert compose["services"][service]["image"] == f"omnistage-{service}:${{OMNISTAGE_VERSION:-{version}}}"
        assert compose["services"][service]["build"]["args"]["VERSION"] == f"${{OMNISTAGE_VERSION:-{version}}}"


def _expressions(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["expr"]] if isinstance(node.get("expr"), str) else []
        return own + [found for value in node.values() for found in _expressions(value)]
    return [found for value in node for found in _expressions(value)] if isinstance(node, list) else []


@pytest.fixture(scope="module")
def expressions(root: Path) -> list[str]:
    board = root / "deploy" / "observability" / "grafana" / "dashboards" / "omnistage.json"
    return _expressions(json.loads(board.read_text(encoding="utf-8")))


def test_the_dashboard_shows_metrics_that_exist(expressions: list[str]) -> None:
    exported = {metric.exposed: metric for metric in names.METRICS}
    for expression in expressions:
        for name in re.findall(r"omnistage_[a-z_]+", expression):
            metric = exported.get(name.removesuffix("_bucket"))
            assert metric is not None, name
            assert name.endswith("_bucket") == isinstance(metric, names.Histogram), name
            grouped = re.search(r"by \(([a-z_, ]+)\)", expression)
            assert grouped, expression
            labels = {label.strip() for label in grouped[1].split(",")} - {"le"}
            assert labels <= {*names.FIXED_LABELS, *metric.labels}, expression


def test_the_dashboard_shows_what_matters(expressions: list[str]) -> None:
    text = " ".join(expressions)
    missing = [metric.name for metric in SHOWN if not re.search(rf"\b{metric.exposed}(_bucket)?\b", text)]
    assert missing == []


def test_prometheus_finds_every_service(root: Path, services: list[str]) -> None:
    jobs = _yaml(root / "deploy" / "observability" / "prometheus" / "prometheus.yml")["scrape_configs"]
    names_found = {name for job in jobs for entry in job["dns_sd_configs"] for name in entry["names"]}
    assert names_found == set(services)
    assert all(job["honor_labels"] for job in jobs)
