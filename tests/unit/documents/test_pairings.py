"""Charts that GitOps objects of the same checkout pair with values, rendered by the real Helm: one engine for each pair."""

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.documents import helm as helm_charts
from kvgate.documents import pairings
from unit.documents.test_rendered import CHART, ENGINE, check, engines, errors  # noqa: F401 - a fixture

Check = Callable[..., dict[str, Any]]
SERVING = {f"charts/serving/{name}": text for name, text in CHART.items()}
APPLICATION = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: prod-llama}
spec:
  destination: {namespace: serving}
  source:
    repoURL: https://git.example/platform.git
    path: charts/serving
    helm:
      valueFiles: [values.yaml, ../../environments/prod.yaml]
"""
SHORT, LONG = "length: 4096\n", "length: 40960\n"


def test_a_chart_is_judged_as_an_application_pairs_it_with_values(check: Check) -> None:  # noqa: F811
    report = check({**SERVING, "apps/prod.yaml": APPLICATION, "environments/prod.yaml": SHORT})
    assert [(each["name"], each["verdict"], each["rendered_by"]) for each in report["documents"]] == [
        ("prod-llama", "Fits", "apps/prod.yaml")
    ]
    assert report["code"] == 0, "the chart's own values, which would not fit, are deployed by nobody"


@pytest.mark.parametrize(
    ("helm", "place"),
    [
        ("valueFiles: [/environments/prod.yaml]", ("environments/prod.yaml", 1)),
        ("valuesObject:\n        length: 40960", ("apps/prod.yaml", 11)),
        ('values: "length: 40960"', ("charts/serving/templates/engine.yaml", 15)),
    ],
)
def test_a_finding_stands_in_the_values_that_win(check: Check, helm: str, place: tuple[str, int]) -> None:  # noqa: F811
    head, _, _ = APPLICATION.partition("      valueFiles")
    files = {**SERVING, "charts/serving/values.yaml": SHORT, "environments/prod.yaml": LONG}
    report = check({**files, "apps/prod.yaml": f"{head}      {helm}\n"})
    assert errors(report) == [(*place, "KVCacheTooSmall")]


def test_two_applications_are_two_engines(check: Check) -> None:  # noqa: F811
    staging = APPLICATION.replace("prod", "staging")
    files = {"environments/prod.yaml": SHORT, "environments/staging.yaml": LONG}
    report = check({**SERVING, "apps/prod.yaml": APPLICATION, "apps/staging.yaml": staging, **files})
    assert [(each["name"], each["verdict"]) for each in report["documents"]] == [
        ("prod-llama", "Fits"),
        ("staging-llama", "DoesNotFit"),
    ]


@pytest.mark.parametrize(
    ("helm", "verdict"),
    [
        ("{valuesObject: {length: 4096}}", "Fits"),
        ('{values: "length: 4096"}', "Fits"),
        ('{values: "length: 4096", valuesObject: {length: 40960}}', "DoesNotFit"),
        ('{valuesObject: {length: 40960}, parameters: [{name: length, value: "4096"}]}', "Fits"),
        ("{valueFiles: [/environments/prod.yaml]}", "Fits"),
        ("{valueFiles: [nowhere.yaml], ignoreMissingValueFiles: true}", "DoesNotFit"),
        ("{releaseName: other, valuesObject: {length: 4096}}", "Fits"),
    ],
)
def test_values_of_an_application_win_in_the_order_of_argo_cd(check: Check, helm: str, verdict: str) -> None:  # noqa: F811
    head, _, _ = APPLICATION.partition("    helm:")
    report = check({**SERVING, "apps/prod.yaml": f"{head}    helm: {helm}\n", "environments/prod.yaml": SHORT})
    assert [each["verdict"] for each in report["documents"]] == [verdict]
    assert report["documents"][0]["name"] == ("other" if "releaseName" in helm else "prod-llama")


def test_values_of_another_source_of_the_same_checkout_are_read(check: Check) -> None:  # noqa: F811
    sources = """\
  sources:
    - repoURL: https://git.example/platform.git
      path: charts/serving
      helm: {valueFiles: [$values/environments/prod.yaml]}
    - {repoURL: https://git.example/platform.git, ref: values}
"""
    application = f"{APPLICATION.partition('  source:')[0]}{sources}"
    report = check({**SERVING, "apps/prod.yaml": application, "environments/prod.yaml": SHORT})
    assert [(each["name"], each["verdict"]) for each in report["documents"]] == [("prod-llama", "Fits")]


SET = """\
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: {name: llamas}
spec:
  goTemplate: true
  generators: GENERATORS
  template:
    metadata: {name: 'NAME-llama'}
    spec:
      source:
        path: charts/serving
        helm: {valueFiles: ['../../environments/FILE.yaml']}
"""


@pytest.mark.parametrize(
    ("generators", "name", "file"),
    [
        ("[{list: {elements: [{env: prod}, {env: staging}]}}]", "{{ .env }}", "{{ .env }}"),
        ("[{list: {elements: [{env: prod}, {env: staging}]}}]", "{{env}}", "{{env}}"),
        ("[{git: {directories: [{path: clusters/*}]}}]", "{{ .path.basename }}", "{{ .path.basename }}"),
        ("[{git: {files: [{path: 'clusters/*/env.json'}]}}]", "{{ .env }}", "{{ .env }}"),
        (
            "[{matrix: {generators: [{clusters: {}}, {list: {elements: [{env: prod}, {env: staging}]}}]}}]",
            "{{ .env }}",
            "{{ .env }}",
        ),
    ],
)
def test_an_application_set_makes_one_engine_for_each_of_its_applications(
    check: Check,  # noqa: F811
    generators: str,
    name: str,
    file: str,
) -> None:
    files = {"environments/prod.yaml": SHORT, "environments/staging.yaml": LONG}
    clusters = {f"clusters/{each}/env.json": f'{{"env": "{each}"}}' for each in ("prod", "staging")}
    text = SET.replace("GENERATORS", generators).replace("NAME", name).replace("FILE", file)
    report = check({**SERVING, **clusters, **files, "apps/set.yaml": text})
    assert sorted((each["name"], each["verdict"]) for each in report["documents"]) == [
        ("prod-llama", "Fits"),
        ("staging-llama", "DoesNotFit"),
    ]


RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: llama, namespace: serving}
spec:
  chart: {spec: {chart: ./charts/serving, sourceRef: {kind: GitRepository, name: flux-system}}}
"""
FROM = "  valuesFrom: [{kind: ConfigMap, name: llama-values}]\n"
GENERATOR = "resources: [release.yaml]\nconfigMapGenerator: [{name: llama-values, files: [values.yaml=length.yaml]}]\n"


@pytest.mark.parametrize(
    ("more", "files", "verdict"),
    [
        ("  values: {length: 4096}\n", {}, "Fits"),
        ("", {}, "DoesNotFit"),
        (FROM, {"apps/kustomization.yaml": GENERATOR, "apps/length.yaml": SHORT}, "Fits"),
    ],
)  # fmt: skip
def test_a_release_of_flux_pairs_a_chart_of_its_repository(
    check: Check,  # noqa: F811
    more: str,
    files: dict[str, str],
    verdict: str,
) -> None:
    report = check({**SERVING, **files, "apps/release.yaml": f"{RELEASE}{more}"})
    assert [(each["name"], each["verdict"]) for each in report["documents"]] == [("llama", verdict)]


def test_a_kustomization_of_flux_puts_its_variables_into_the_overlay(check: Check) -> None:  # noqa: F811
    flux = """\
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: llama}
spec: {path: ./apps/llama, postBuild: {substitute: {LENGTH: "40960"}}}
"""
    files = {
        "clusters/ks.yaml": flux,
        "apps/llama/kustomization.yaml": "resources: [engine.yaml]\n",
        "apps/llama/engine.yaml": ENGINE.replace("4096", "${LENGTH:=4096}"),
    }
    assert engines(check(files))[0][3] == "DoesNotFit"
    assert pairings.substituted(b"${A} ${B:=two} ${C}", {"A": "1"}) == b"1 two ${C}"


def test_a_helmfile_is_one_engine_for_each_environment(check: Check) -> None:  # noqa: F811
    helmfile = """\
environments: {prod: {}, staging: {}}
releases:
  - name: llama
    chart: ./charts/serving
    values: [environments/{{ .Environment.Name }}.yaml]
"""
    files = {"environments/prod.yaml": SHORT, "environments/staging.yaml": LONG, "helmfile.yaml": helmfile}
    assert [each["verdict"] for each in check({**SERVING, **files})["documents"]] == ["Fits", "DoesNotFit"]


@pytest.mark.parametrize(
    ("values", "verdict", "is_told"),
    [
        (SHORT, "Fits", False),
        ("length: 4096 # {{ .Environment.Name }}\n", "Fits", False),
        ("length: {{ .Values.length }}\n", "DoesNotFit", True),
    ],
)
def test_values_of_a_helmfile_that_may_be_templates(check: Check, values: str, verdict: str, *, is_told: bool) -> None:  # noqa: F811
    helmfile = "releases: [{name: llama, chart: ./charts/serving, values: [prod.yaml.gotmpl]}]\n"
    report = check({**SERVING, "prod.yaml.gotmpl": values, "helmfile.yaml": helmfile})
    assert [each["verdict"] for each in report["documents"]] == [verdict]
    assert ("prod.yaml.gotmpl (a template that is not evaluated)" in str(report)) == is_told


TERRAFORM = """\
resource "helm_release" "llama" {
  name  = "llama"
  chart = "${path.module}/charts/serving"
  values = [VALUES]
  SET
}
"""


@pytest.mark.parametrize(
    ("values", "more", "verdict"),
    [
        ('file("${path.module}/environments/prod.yaml")', "", "Fits"),
        ("yamlencode({ length = 4096 })", "", "Fits"),
        ("<<-EOT\n    length: 4096\n  EOT\n", "", "Fits"),
        ("yamlencode({ length = 4096 })", 'set {\n name = "length"\n value = "40960"\n }', "DoesNotFit"),
        ("yamlencode({ length = 4096 })", 'set = [{ name = "length", value = 40960 }]', "DoesNotFit"),
        ("yamlencode({ length = var.length })", "", "DoesNotFit"),
        ("yamlencode(merge(local.common, { length = 4096 }))", "", "DoesNotFit"),
        ('templatefile("prod.tftpl", {})', "", "DoesNotFit"),
    ],
)
def test_a_release_of_terraform_pairs_a_chart_with_literal_values(
    check: Check,  # noqa: F811
    values: str,
    more: str,
    verdict: str,
) -> None:
    text = TERRAFORM.replace("VALUES", values).replace("SET", more)
    report = check({**SERVING, "environments/prod.yaml": SHORT, "main.tf": text})
    assert [(each["name"], each["verdict"], each["rendered_by"]) for each in report["documents"]] == [
        ("llama", verdict, "main.tf")
    ]
    assert ("var.length" in str(report) or "templatefile" in str(report)) == (
        ("var." in values) or ("template" in values)
    )


def test_what_is_no_hcl_is_told(check: Check) -> None:  # noqa: F811
    report = check({**SERVING, "main.tf": 'resource "helm_release" "x" {{{ chart = "./charts"\n'})
    assert "it is not HCL" in str(report["unrendered"])


def test_skaffold_pairs_a_chart_with_values(check: Check) -> None:  # noqa: F811
    skaffold = """\
apiVersion: skaffold/v4beta11
kind: Config
deploy: {helm: {releases: [{name: llama, chartPath: charts/serving, setValues: {length: 4096}}]}}
"""
    assert [each["verdict"] for each in check({**SERVING, "skaffold.yaml": skaffold})["documents"]] == ["Fits"]


def test_values_of_the_command_line_go_before_what_an_application_says(check: Check) -> None:  # noqa: F811
    files = {**SERVING, "apps/prod.yaml": APPLICATION, "environments/prod.yaml": SHORT}
    report = check(files, ".", "charts/serving", "--helm-argument=--set=length=40960")
    assert "DoesNotFit" in {each["verdict"] for each in report["documents"]}


def test_what_is_not_read_is_told_and_ends_nothing(check: Check) -> None:  # noqa: F811
    files = {
        **SERVING,
        "apps/a.yaml": APPLICATION.replace("../../environments/prod.yaml", "https://values.example/prod.yaml"),
        "apps/b.yaml": APPLICATION.replace("charts/serving", "../outside"),
        "apps/c.yaml": SET.replace("GENERATORS", "[{pullRequest: {}}]").replace(
            "charts/serving", "'{{ .path | lower }}'"
        ),
    }
    report = check(files)
    assert [each["name"] for each in report["documents"]] == ["prod-llama"]
    notes = str(report)
    assert "https://values.example/prod.yaml" in notes
    assert "its path ../outside leads out of the checkout" in notes
    assert "its path {{ .path | lower }} is a template that is not evaluated" in notes
    assert "pullRequest" in notes


def test_ten_thousand_applications_of_one_set_are_bounded(check: Check) -> None:  # noqa: F811
    lists = f"{{list: {{elements: [{', '.join(f'{{env: e{n}}}' for n in range(1000))}]}}}}"
    generators = f"[{{matrix: {{generators: [{lists}, {lists.replace('env', 'model')}]}}}}]"
    text = SET.replace("GENERATORS", generators).replace("NAME", "{{env}}-{{model}}")
    found = check({"charts/serving/Chart.yaml": "name: serving\n", "apps/set.yaml": text})
    assert "the first 50 are read" in str(found)


def test_values_that_lie_outside_or_are_too_large_are_told(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(helm_charts, "_MAX_FILE_BYTES", 1000)
    files = {**SERVING, "apps/a.yaml": APPLICATION, "environments/prod.yaml": f"{SHORT}x: {'y' * 1000}\n"}
    assert "environments/prod.yaml cannot be read: it has more than 1000 bytes" in str(check(files)["unrendered"])
    outside = APPLICATION.replace("../../environments/prod.yaml", "../../../../prod.yaml")
    assert "prod.yaml" in str(check({**SERVING, "apps/a.yaml": outside})["unrendered"])


def test_applications_that_name_each_other_end(check: Check) -> None:  # noqa: F811
    inner = {"charts/serving/templates/app.yaml": APPLICATION.replace("  ../../environments/prod.yaml", "")}
    outer = APPLICATION.replace("charts/serving", "apps")
    report = check(
        {**SERVING, **inner, "apps/a.yaml": APPLICATION, "apps/b.yaml": outer, "environments/prod.yaml": SHORT}
    )
    assert [each["name"] for each in report["documents"] if each["engine"]] == ["prod-llama"]


def test_pairings_beyond_the_limit_are_told_also_where_one_file_has_them(
    check: Check,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairings, "MAX_PAIRINGS", 1)
    two = f"{APPLICATION}---\n{APPLICATION.replace('prod', 'staging')}"
    files = {"environments/prod.yaml": SHORT, "environments/staging.yaml": SHORT}
    report = check({**SERVING, **files, "apps/two.yaml": two}, "charts", "apps")
    assert "GitOps objects from here on are not read: 1 pairings" in str(report["unrendered"])


def test_an_application_without_a_chart_in_the_checkout_is_read_as_before(check: Check) -> None:  # noqa: F811
    text = APPLICATION.replace("    path: charts/serving\n", "    chart: vllm-stack\n")
    assert check({**SERVING, "apps/prod.yaml": text})["code"] == 1, "the chart's own values do not fit"
