"""docs/ci.md: each command that it shows for GitOps, Terraform, Jenkins and plain Helm finds the engine and its values."""

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from support.command_line import invoked
from unit.documents.test_rendered import CHART, ENGINE, Check, check  # noqa: F401 - a fixture

PAGE = (Path(__file__).parents[3] / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:sh|groovy)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(GITOPS,) = [block.splitlines() for block in BLOCKS if "helm_release" in block]
(JENKINS,) = re.findall(r"sh '(kvgate [^']+)'", PAGE)
FILES = {
    **{f"charts/serving/{name}": text for name, text in CHART.items()},
    "environments/prod.yaml": "length: 4096\n",
    # as in a repository of Flux: the source is the repository itself
    "flux/llama.yaml": """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: llama, namespace: serving}
spec:
  interval: 10m
  chart: {spec: {chart: charts/serving, sourceRef: {kind: GitRepository, name: platform}}}
  values: {length: 4096}
""",
    "argocd/llama.yaml": """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: llama, namespace: argocd}
spec:
  project: default
  destination: {namespace: serving, server: "https://kubernetes.default.svc"}
  source:
    repoURL: https://git.example/platform.git
    targetRevision: main
    path: charts/serving
    helm: {valueFiles: [/environments/prod.yaml]}
  syncPolicy: {automated: {prune: true}}
""",
    "helmfile.yaml": """\
environments: {prod: {}}
releases:
- name: llama
  namespace: serving
  chart: ./charts/serving
  values: ["environments/{{ .Environment.Name }}.yaml"]
""",
    "terraform/main.tf": """\
resource "helm_release" "llama" {
  name      = "llama"
  namespace = "serving"
  chart     = "${path.module}/../charts/serving"
  values    = [file("${path.module}/../environments/prod.yaml")]
}
""",
}


@pytest.mark.parametrize("line", GITOPS)
def test_a_command_of_the_page_judges_the_release_with_its_values(check: Check, line: str) -> None:  # noqa: F811
    check(FILES, "environments")
    first, _, last = line.partition("#")[0].strip().partition(" | ")
    stdin = subprocess.run(first.split(), capture_output=True, text=True, check=True).stdout if last else None
    done = invoked(*(last or first).split()[1:], stdin=stdin)
    judged = re.findall(r"deployment (\S+) on L4-24GB.*: (\w+): ", done.stdout)
    assert (done.exit_code, judged) == (0, [("llama", "Fits")]), done.stdout


def test_jenkins_gets_the_file_that_it_reads(check: Check) -> None:  # noqa: F811
    check({"environments/prod.yaml": "length: 4096\n", "engine.yaml": ENGINE})
    assert invoked(*JENKINS.split()[1:]).exit_code == 0
    (name,) = re.findall(r"junit '(\S+)'", PAGE)
    assert [each.get("name") for each in ET.parse(name).iter("testcase")] != []
