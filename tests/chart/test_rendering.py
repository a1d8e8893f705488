"""What the chart renders: the golden files, and the facts that it shares with the code."""

import base64
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chart.golden import CASES, INSTALL, golden_file, rendered_case, rendered_install
from generate.deployment_files import CRD_TEMPLATES, crd_template
from kvgate import __version__
from kvgate.api.crd import custom_resource_definition, record_definition
from kvgate.cluster import leases
from kvgate.cluster.leases import Claim
from kvgate.cluster.permissions import (
    CERTIFICATE_RULES,
    LEASE_RULES,
    MODEL_RULES,
    OWN_NAMESPACE_RULES,
    RULES,
    Permission,
)
from kvgate.rendering.labels import labels
from kvgate.rendering.workload import IMAGES
from support.assets import require_assets
from support.chart import CHART, NAMESPACE, ROOT, documents, helm, one, render

COMPONENT = "app.kubernetes.io/component"

KEEP = {"helm.sh/resource-policy": "keep"}


@pytest.fixture(scope="module")
def binary(pytestconfig: pytest.Config) -> Path:
    return require_assets(pytestconfig, "helm") / "helm"


@pytest.fixture(scope="module")
def defaults(binary: Path) -> list[dict[str, Any]]:
    return documents(render(binary))


def test_helm_finds_nothing_to_complain_about(binary: Path) -> None:
    assert "0 chart(s) failed" in helm(binary, "lint", "--strict", CHART)


@pytest.mark.parametrize("case", CASES)
def test_a_case_renders_what_was_agreed(binary: Path, case: str) -> None:
    assert rendered_case(binary, case) == golden_file(case).read_text(encoding="utf-8")


def test_there_is_a_golden_file_for_each_case_and_no_other() -> None:
    assert sorted(path.stem for path in golden_file("").parent.glob("*.yaml")) == CASES != []


def test_the_file_for_those_without_helm_is_the_chart_with_its_default_values(binary: Path) -> None:
    assert rendered_install(binary) == INSTALL.read_text(encoding="utf-8")


def test_the_chart_and_its_image_have_the_version_of_the_package(defaults: list[dict[str, Any]]) -> None:
    assert re.findall(r"^(?:version|appVersion): (.*)$", (CHART / "Chart.yaml").read_text(), re.MULTILINE) == [
        __version__,
        __version__,
    ]
    pods = [one(defaults, "Deployment", f"kvgate-{door}")["spec"]["template"] for door in ("controller", "webhook")]
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {f"kvgate:{__version__}"}


def test_the_chart_installs_the_crds_of_the_api_types_and_keeps_them(defaults: list[dict[str, Any]]) -> None:
    for ours in (custom_resource_definition(), record_definition()):
        crd = one(defaults, "CustomResourceDefinition", ours["metadata"]["name"])
        assert crd["spec"] == ours["spec"]
        assert crd["metadata"]["annotations"] == KEEP


def test_braces_in_a_description_are_not_taken_for_a_template(binary: Path, tmp_path: Path) -> None:
    crd = custom_resource_definition()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "{{ .Values }} and {{{{"
    shutil.copytree(CHART, tmp_path / CHART.relative_to(ROOT))
    (tmp_path / CRD_TEMPLATES / "inferencedeployments.yaml").write_text(crd_template(crd), encoding="utf-8")
    found = documents(helm(binary, "template", tmp_path / CHART.relative_to(ROOT)))
    assert one(found, "CustomResourceDefinition", crd["metadata"]["name"])["spec"] == crd["spec"]


def test_a_crd_that_need_not_be_kept_has_no_annotation(binary: Path) -> None:
    found = documents(render(binary, "--set", "crds.keep=false"))
    for plural in ("inferencedeployments", "admissionrecords"):
        assert "annotations" not in one(found, "CustomResourceDefinition", f"{plural}.kvgate.io")["metadata"]


LEASE_ROLE = f"kvgate-lease.{NAMESPACE}"


def rules(permissions: Iterable[Permission] = RULES, namespaces: Sequence[str] = ()) -> list[dict[str, Any]]:
    lease = {"resourceNames": [Claim.of(namespaces, holder="", instance="").lease]}
    return [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        | (lease if rule.on_own_lease else {})
        | ({"resourceNames": [f"kvgate-{name}" for name in config_maps(rule)]} if rule.object_name else {})
        for rule in permissions
    ]


def config_maps(rule: Permission) -> list[str]:
    return [rule.object_name, *(f"{rule.object_name}-{number}" for number in range(rule.shards))]


def test_the_controller_may_do_what_the_permissions_say(defaults: list[dict[str, Any]]) -> None:
    assert one(defaults, "ClusterRole", f"kvgate-controller.{NAMESPACE}")["rules"] == rules()
    assert one(defaults, "Role", "kvgate-calibration")["rules"] == rules(OWN_NAMESPACE_RULES)
    assert one(defaults, "Role", LEASE_ROLE)["rules"] == rules(LEASE_RULES)
    assert one(defaults, "Role", LEASE_ROLE)["metadata"]["namespace"] == leases.NAMESPACE
    ours = [document for document in defaults if document["metadata"].get("labels", {}).get(COMPONENT) != "user-roles"]
    assert {document["kind"] for document in ours if "Role" in document["kind"]} == {
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    }


def test_with_named_namespaces_it_may_do_it_there_only(binary: Path) -> None:
    found = documents(render(binary, "--set", "watchNamespaces={team-a,team-b}"))
    roles = [document for document in found if document["kind"] == "Role"]
    assert [(role["metadata"]["namespace"], role["rules"]) for role in roles] == [
        (NAMESPACE, rules(OWN_NAMESPACE_RULES)),
        (NAMESPACE, rules(CERTIFICATE_RULES)),
        (leases.NAMESPACE, rules(LEASE_RULES, ["team-b", "team-a"])),
        ("team-a", rules()),
        ("team-b", rules()),
    ]
    cluster_wide = [document for document in found if document["kind"].startswith("ClusterRole")]
    bound = {document["metadata"]["name"] for document in cluster_wide if document["kind"] == "ClusterRoleBinding"}
    assert bound == {f"kvgate-webhook-ca.{NAMESPACE}"}, "only to the release's own webhook configuration"
    (container,) = one(found, "Deployment", "kvgate-controller")["spec"]["template"]["spec"]["containers"]
    assert {"--namespace=team-a", "--namespace=team-b"} < set(container["args"])


def test_users_get_their_rights_by_the_roles_of_kubernetes_and_nobody_gets_to_write_a_status(
    binary: Path, defaults: list[dict[str, Any]]
) -> None:
    roles = [document for document in defaults if document["metadata"].get("labels", {}).get(COMPONENT) == "user-roles"]
    granted: dict[str, set[tuple[str, str]]] = {}
    for role in roles:
        rights = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
        for label in role["metadata"]["labels"]:
            if label.startswith("rbac.authorization.k8s.io/aggregate-to-"):
                granted.setdefault(label.rpartition("-")[2], set()).update(rights)
    assert set(granted) == {"view", "edit", "admin"}
    assert {verb for _, verb in granted["view"]} == {"get", "list", "watch"}
    assert ("inferencedeployments", "create") in granted["edit"] - granted["view"]
    assert ("inferencedeployments/scale", "patch") in granted["edit"]
    assert granted["admin"] == granted["edit"]
    writes = {(resource, verb) for resource, verb in granted["admin"] if verb not in ("get", "list", "watch")}
    assert not [resource for resource, _ in writes if resource.endswith("/status")]
    without = documents(render(binary, "--set", "crds.userRoles=false"))
    assert not [
        document for document in without if document["metadata"].get("labels", {}).get(COMPONENT) == "user-roles"
    ]


def test_nobody_but_the_controller_has_rights_or_a_token(defaults: list[dict[str, Any]]) -> None:
    for binding in (each for each in defaults if each["kind"].endswith("RoleBinding")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kvgate-controller", "namespace": NAMESPACE}]
    pods = {
        door: one(defaults, "Deployment", f"kvgate-{door}")["spec"]["template"]["spec"]
        for door in ("controller", "webhook")
    }
    assert {door: pod["automountServiceAccountToken"] for door, pod in pods.items()} == {
        "controller": True,
        "webhook": False,
    }


def test_a_provided_ca_reaches_the_api_server_as_base64_of_its_pem(binary: Path) -> None:
    found = documents(rendered_case(binary, "provided"))
    (webhook,) = one(found, "ValidatingWebhookConfiguration", f"kvgate-webhook.{NAMESPACE}")["webhooks"]
    pem = base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
    assert pem.startswith("-----BEGIN CERTIFICATE-----\n")


def test_the_controller_makes_the_certificate_that_the_webhook_mounts(defaults: list[dict[str, Any]]) -> None:
    secret = one(defaults, "Secret", "kvgate-webhook-cert")
    assert "data" not in secret, "an upgrade would empty it"
    pods = {
        door: one(defaults, "Deployment", f"kvgate-{door}")["spec"]["template"]["spec"]
        for door in ("controller", "webhook")
    }
    files = [{"key": name, "path": name} for name in ("tls.crt", "tls.key")]
    assert {"name": "tls", "secret": {"secretName": "kvgate-webhook-cert", "items": files}} in pods["webhook"][
        "volumes"
    ]
    assert {
        f"--webhook-secret={NAMESPACE}/kvgate-webhook-cert", f"--webhook-configuration=kvgate-webhook.{NAMESPACE}",
    } <= set(pods["controller"]["containers"][0]["args"])  # fmt: skip
    (webhook,) = one(defaults, "ValidatingWebhookConfiguration", f"kvgate-webhook.{NAMESPACE}")["webhooks"]
    assert "caBundle" not in webhook["clientConfig"], "an upgrade would take it away"
    assert one(defaults, "Role", "kvgate-webhook-cert")["rules"] == rules(CERTIFICATE_RULES)
    (rule,) = one(defaults, "ClusterRole", f"kvgate-webhook-ca.{NAMESPACE}")["rules"]
    assert (rule["verbs"], rule["resourceNames"]) == (["get", "patch"], [f"kvgate-webhook.{NAMESPACE}"])


def test_with_cert_manager_the_ca_is_left_to_its_injector(binary: Path) -> None:
    defaults = documents(render(binary, "--set=webhook.certs.mode=certManager"))
    configuration = one(defaults, "ValidatingWebhookConfiguration", f"kvgate-webhook.{NAMESPACE}")
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/kvgate-webhook"}
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]
    certificate = one(defaults, "Certificate", "kvgate-webhook")["spec"]
    pod = one(defaults, "Deployment", "kvgate-webhook")["spec"]["template"]["spec"]
    (mounted,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tls"]
    assert mounted == certificate["secretName"]
    service = webhook_service(configuration)
    assert certificate["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]


def webhook_service(configuration: dict[str, Any]) -> dict[str, Any]:
    service: dict[str, Any] = configuration["webhooks"][0]["clientConfig"]["service"]
    return service


def test_the_image_runs_as_the_user_that_the_pods_ask_for(defaults: list[dict[str, Any]]) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    for door in ("controller", "webhook"):
        context = one(defaults, "Deployment", f"kvgate-{door}")["spec"]["template"]["spec"]["securityContext"]
        assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user


def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    """Also where the context leaves files out; the requirements are installed by other steps."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [
        name for names in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE) for name in names.split()
    ]
    assert all(
        any(f"{name}/".startswith(f"{kept[1:]}/") for kept in ignored if kept.startswith("!")) for name in copied
    )
    for name in copied:
        target = tmp_path / "src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", tmp_path, tmp_path / "src"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {"kvgate/docs/runbooks/KvgateEngineFull.md", "kvgate/docs/reference/rules.md"} <= set(packed.namelist())


def released(binary: Path, release: str, namespace: str, *options: str) -> list[dict[str, Any]]:
    everything = ["--set=monitoring.enabled=true,monitoring.otherPodsMonitor.enabled=true,image.repository=r", *options]
    return documents(helm(binary, "template", release, CHART, "--namespace", namespace, *everything))


def identity(document: dict[str, Any]) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


LONG = "a-release-name-that-is-as-long-as-helm-lets-it-be-abc"
PLACES = [
    ("kvgate", "one"),
    ("kvgate", "two"),
    ("a", "one"),
    ("a.b", "one"),
    ("a-b", "one"),
    (LONG, "one"),
    (f"{LONG[:-1]}d", "one"),
]


def test_two_releases_share_no_object_but_the_crd(binary: Path) -> None:
    for options in ("--set=watchNamespaces={team-a}", "--set-json=watchNamespaces=[]"):
        seen: dict[tuple[str, str, str], tuple[str, str]] = {}
        for place in PLACES:
            for document in released(binary, *place, options):
                if document["kind"] == "CustomResourceDefinition":
                    continue
                assert seen.setdefault(identity(document), place) == place


def test_every_name_of_a_release_is_one_that_the_api_server_takes(binary: Path) -> None:
    for place in PLACES:
        for kind, _, name in map(identity, released(binary, *place)):
            assert len(name) <= 63 or kind.startswith(("ClusterRole", "Validating"))
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or kind not in ("Service", "Deployment")
            assert len(name) <= 253


def test_a_second_release_leaves_the_crd_alone_where_it_is_told_to(binary: Path) -> None:
    kinds = [document["kind"] for document in released(binary, "kvgate", "two", "--set=crds.enabled=false")]
    assert "CustomResourceDefinition" not in kinds


def test_the_webhook_judges_the_watched_namespaces_only(binary: Path) -> None:
    for options, expected in (
        ("--set=watchNamespaces={team-a,team-b}", ["team-a", "team-b"]),
        ("--set-json=watchNamespaces=[]", []),
    ):
        found = released(binary, "kvgate", NAMESPACE, options)
        (webhook,) = one(found, "ValidatingWebhookConfiguration", f"kvgate-webhook.{NAMESPACE}")["webhooks"]
        selected = [
            each["values"]
            for each in webhook["namespaceSelector"]["matchExpressions"]
            if (each["key"], each["operator"]) == ("kubernetes.io/metadata.name", "In")
        ]
        assert selected == ([expected] if expected else [])


def test_the_images_that_teach_are_by_default_those_that_are_rendered(defaults: list[dict[str, Any]]) -> None:
    for door in ("controller", "webhook"):
        (container,) = one(defaults, "Deployment", f"kvgate-{door}")["spec"]["template"]["spec"]["containers"]
        images = [each.partition("=")[2] for each in container["args"] if each.startswith("--calibration-image=")]
        assert images == list(IMAGES.values())
        assert "--calibration-scope=Namespace" in container["args"]


def hub(binary: Path, *options: str) -> list[dict[str, Any]]:
    return documents(render(binary, "--set", "models.resolve=hub", *options))


def named(found: list[dict[str, Any]], word: str) -> set[tuple[str, str]]:
    """Kind and name of the objects whose name or text has a word."""
    return {(each["kind"], each["metadata"]["name"]) for each in found if word in str(each).lower()}


def test_the_rights_of_authors_are_asked_for_in_the_watched_namespaces_and_can_be_left_out(binary: Path) -> None:
    name = f"kvgate-author-rights.{NAMESPACE}"
    for options, values in (
        ("--set=watchNamespaces={team-a,team-b}", ["team-a", "team-b"]),
        ("--set-json=watchNamespaces=[]", None),
    ):
        binding = one(documents(render(binary, options)), "ValidatingAdmissionPolicyBinding", name)["spec"]
        selected = binding.get("matchResources", {}).get("namespaceSelector", {}).get("matchExpressions", [{}])[0]
        assert (binding["validationActions"], selected.get("values")) == (["Deny"], values)
    for pods, secrets in ((True, False), (False, True), (True, True)):
        options = (
            f"--set=authors.mustCreatePods={str(pods).lower()}",
            f"--set=authors.mustReadSecrets={str(secrets).lower()}",
        )
        policy = str(one(documents(render(binary, *options)), "ValidatingAdmissionPolicy", name))
        assert (("'pods'" in policy), ("'secrets'" in policy)) == (pods, secrets)
    neither = documents(render(binary, "--set=authors.mustCreatePods=false"))
    assert [each for each in neither if each["kind"].startswith("ValidatingAdmission")] == []


def test_the_policy_of_authors_and_the_webhook_look_at_the_same_changes(defaults: list[dict[str, Any]]) -> None:
    (webhook,) = one(defaults, "ValidatingWebhookConfiguration", f"kvgate-webhook.{NAMESPACE}")["webhooks"]
    policy = one(defaults, "ValidatingAdmissionPolicy", f"kvgate-author-rights.{NAMESPACE}")["spec"]
    assert policy["matchConditions"] == webhook["matchConditions"]
    assert policy["matchConstraints"]["resourceRules"] == webhook["rules"]
    assert policy["failurePolicy"] == "Fail"


def test_the_policy_of_authors_looks_at_every_secret_that_a_spec_can_name(binary: Path) -> None:
    """Every field of the CRD that names a Secret, found by its name."""
    rendered = documents(render(binary, "--set=authors.mustReadSecrets=true"))
    policy = str(one(rendered, "ValidatingAdmissionPolicy", f"kvgate-author-rights.{NAMESPACE}"))
    spec = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    fields = set(re.findall(r"'(\w*[sS]ecret\w*)': ", str(spec)))
    assert fields == {
        "tokenSecretRef", "secretKeyRef", "imagePullSecrets", "secret", "secretName", "secretRef", "nodePublishSecretRef",
    }  # fmt: skip
    assert [field for field in fields if field not in policy] == []


SCRAPER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}


@pytest.mark.parametrize("door", ["controller", "webhook"])
@pytest.mark.parametrize("scrapers", [None, [SCRAPER], [{**SCRAPER, "podSelector": {"matchLabels": {"app": "p"}}}], []])
def test_only_who_is_named_reaches_the_metrics(
    binary: Path, tmp_path: Path, door: str, scrapers: list[dict[str, Any]] | None
) -> None:
    """By default that is one namespace, by the label that the API server sets. An empty `from` would let everybody in."""
    default = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    values = {} if scrapers is None else {"monitoring": {"scrapers": scrapers}}
    (tmp_path / "values.json").write_text(json.dumps(values), encoding="utf-8")
    policy = one(documents(render(binary, "--values", tmp_path / "values.json")), "NetworkPolicy", f"kvgate-{door}")[
        "spec"
    ]
    assert "Ingress" in policy["policyTypes"]
    to_metrics = [rule for rule in policy["ingress"] if {"port": "metrics", "protocol": "TCP"} in rule["ports"]]
    named = default if scrapers is None else scrapers
    assert [rule["from"] for rule in to_metrics] == ([named] if named else [])
    assert all(len(rule["ports"]) == 1 for rule in policy["ingress"])
    assert (door == "webhook") == ({"ports": [{"port": "webhook", "protocol": "TCP"}]} in policy["ingress"])


@pytest.mark.parametrize("value", ['"off"', "off", "false"], ids=["text", "as YAML takes off", "false"])
def test_by_default_nothing_asks_a_hub(binary: Path, tmp_path: Path, value: str) -> None:
    (tmp_path / "values.yaml").write_text(f"crds: {{enabled: false}}\nmodels: {{resolve: {value}}}\n", encoding="utf-8")
    found = documents(render(binary, "--values", tmp_path / "values.yaml"))
    assert named(found, "models") | named(found, "hf_") | named(found, "huggingface") == set()
    policies = [each for each in found if each["kind"] == "NetworkPolicy"]
    assert {each["metadata"]["name"] for each in policies} == {"kvgate-webhook", "kvgate-controller"}


def test_with_a_hub_the_controller_fetches_and_the_webhook_reads(binary: Path) -> None:
    found = hub(binary)
    (controller,) = one(found, "Deployment", "kvgate-controller")["spec"]["template"]["spec"]["containers"]
    assert {f"--models={NAMESPACE}/kvgate-models", "--resolve-seconds=60"} < set(controller["args"])
    pod = one(found, "Deployment", "kvgate-webhook")["spec"]["template"]["spec"]
    (webhook,) = pod["containers"]
    assert "--models=/models" in webhook["args"]
    assert "env" not in webhook
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in webhook["volumeMounts"]
    mounted = next(each for each in pod["volumes"] if each["name"] == "models")
    assert mounted["configMap"] == {"name": "kvgate-models", "optional": True}, (
        "without it the webhook answers all the same"
    )
    assert one(found, "Role", "kvgate-models")["rules"] == rules(MODEL_RULES)
    assert one(found, "RoleBinding", "kvgate-models")["subjects"] == [
        {"kind": "ServiceAccount", "name": "kvgate-controller", "namespace": NAMESPACE}
    ]


def test_the_controller_has_a_token_of_the_hub_only_where_an_administrator_names_its_secret(binary: Path) -> None:
    def variables(*options: str) -> dict[str, Any]:
        (container,) = one(hub(binary, *options), "Deployment", "kvgate-controller")["spec"]["template"]["spec"][
            "containers"
        ]
        return {each["name"]: each for each in container["env"]}

    assert "HF_TOKEN" not in variables()
    token = variables("--set", "models.tokenSecret.name=hub-token")["HF_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}
    for rule in (*RULES, *OWN_NAMESPACE_RULES, *MODEL_RULES, *LEASE_RULES):
        assert "secrets" not in rule.resources


def test_with_a_hub_the_controller_connects_to_what_it_needs_and_the_webhook_to_nothing(binary: Path) -> None:
    found = hub(binary)
    assert "egress" not in one(found, "NetworkPolicy", "kvgate-webhook")["spec"]
    assert "Egress" in one(found, "NetworkPolicy", "kvgate-webhook")["spec"]["policyTypes"]
    policy = one(found, "NetworkPolicy", "kvgate-controller-egress")["spec"]
    assert policy["policyTypes"] == ["Egress"]
    assert policy["podSelector"] == one(found, "NetworkPolicy", "kvgate-controller")["spec"]["podSelector"]
    ports = [sorted({port["port"] for port in rule["ports"]}) for rule in policy["egress"]]
    assert ports == [[53], [443, 6443], [8000], [443]]
    *_, public = policy["egress"]
    blocks = [each["ipBlock"] for each in public["to"]]
    assert [each["cidr"] for each in blocks] == ["0.0.0.0/0", "::/0"]
    assert {"10.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"} < set(blocks[0]["except"])
    (pods,) = policy["egress"][2]["to"]
    assert pods["podSelector"]["matchLabels"].items() <= labels("any").items()
    without = hub(binary, "--set", "models.egress.enabled=false")
    assert ("NetworkPolicy", "kvgate-controller-egress") not in named(without, "egress")
