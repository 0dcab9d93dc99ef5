"""The Kubernetes manifests: valid for Kubernetes, valid for GT's commands, and their containers' commands run here."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
import yaml

from tests.support.processes import LONG, ROOT, Process, environment, free_port, wait_until

PATH = ROOT / "examples" / "kubernetes" / "gt.yaml"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(PATH.read_text()))
PAGE = (ROOT / "docs" / "clusters.md").read_text()


def name_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def pod(kind: str) -> dict[str, Any]:
    spec = next(m for m in MANIFESTS if m["kind"] == kind)["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


SERVER, WORKER = pod("Deployment"), pod("StatefulSet")


@pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)
def test_kubernetes_accepts_it(manifest):
    validate = pytest.importorskip("kubernetes_validate", reason="make test-all installs kubernetes-validate")
    validate.validate(manifest, "1.30", strict=True)


def test_the_validation_would_notice():
    validate = pytest.importorskip("kubernetes_validate", reason="make test-all installs kubernetes-validate")
    wrong = {**MANIFESTS[0], "spec": {**MANIFESTS[0]["spec"], "replica": 1}}
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, "1.30", strict=True)


@pytest.mark.parametrize("container", [SERVER["containers"][0], WORKER["containers"][0]], ids=["server", "worker"])
def test_every_argument_is_an_option(container):
    assert container["command"][:2] == ["python", "-m"]
    module = container["command"][2]
    parser = importlib.import_module(module if module == "gt.server" else f"{module}.__main__")._make_parser()
    options = parser.parse_args(container["args"])  # ends with an error if one is unknown
    assert options.port == 9000


def test_names_and_ports_agree():
    services = {m["metadata"]["name"]: m["spec"] for m in MANIFESTS if m["kind"] == "Service"}
    ports = {port["name"]: port["containerPort"] for port in SERVER["containers"][0]["ports"]}
    assert ports == {port["name"]: port["port"] for port in services["gt-server"]["ports"]}
    host = WORKER["containers"][0]["args"][1]
    assert services[host]["selector"] == {"app": "gt", "part": "server"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert SERVER["containers"][0][probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert SERVER["containers"][0]["args"][-1] == f"0.0.0.0:{ports['metrics']}"
    assert next(m for m in MANIFESTS if m["kind"] == "StatefulSet")["spec"]["serviceName"] in services


def test_no_secret_is_in_the_manifests():
    assert not [m for m in MANIFESTS if m["kind"] == "Secret"]
    values = re.findall(
        r"name: GT_TOKEN\n\s+valueFrom:\n\s+secretKeyRef: \{name: ([\w-]+), key: (\w+)\}", PATH.read_text()
    )
    assert values == [("gt-server", "owner"), ("gt-worker", "token")]
    for secret, key in [*values, ("gt-server", "key"), ("gt-server", "tokens.json")]:
        assert re.search(rf"kubectl create secret generic {secret}\b.*{re.escape(key)}", PAGE.replace("\\\n", ""))


def test_the_containers_run(stack, tmp_path):
    """The commands of the page make the secrets; then each container's command runs with the pod's folders here."""
    secret, config = tmp_path / "secret", tmp_path / "config"
    for folder in (secret, config):
        folder.mkdir()
    command = next(line for line in PAGE.splitlines() if line.startswith("gt token new workers "))
    words = shlex.split(command.partition(">")[0])
    made = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LONG
    )
    assert made.returncode == 0, made.stderr
    for name in ("key", "tokens.json"):
        (secret / name).write_text((tmp_path / "cluster" / name).read_text())
    start = SERVER["initContainers"][0]["command"][2].replace("/secret", str(secret)).replace("/config", str(config))
    subprocess.run(["sh", "-c", start], check=True)

    ports = {"9000": str(free_port()), "0.0.0.0:9100": f"127.0.0.1:{free_port()}"}
    variables = {"XDG_CONFIG_HOME": str(config), "XDG_RUNTIME_DIR": str(tmp_path), "GT_OPERATOR_TOKEN": ""}
    server = start_container(stack, SERVER, ports, GT_TOKEN="0123456789abcdef" * 4, **variables)
    server.expect("listening on 0.0.0.0:")
    health = f"http://{ports['0.0.0.0:9100']}/healthz"
    wait_until(lambda: status(health) == 200, what="the server is healthy")
    ports |= {"gt-server": "127.0.0.1", "9200-9299": f"{free_port()}"}
    worker = start_container(
        stack, WORKER, ports, XDG_CONFIG_HOME=str(tmp_path / "worker"), GT_TOKEN=made.stdout.strip()
    )
    worker.expect("joined 127.0.0.1:")


def start_container(stack: Any, spec: dict[str, Any], ports: dict[str, str], **variables: str) -> Process:
    container = spec["containers"][0]
    words = [*container["command"][1:], *(ports.get(word, word) for word in container["args"])]
    process = Process(*words, GT_BACKEND="numpy", **variables)
    stack.callback(process.close)
    return process


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except OSError:
        return 0
