"""Charts and overlays, rendered by the real Helm and kubectl: engines found once, and findings in the files that they come from."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kvgate.documents import confined, helm, kustomize, programs
from support.assets import require_assets, require_walls
from support.command_line import invoked

pytestmark = pytest.mark.slow  # programs behind walls

ENGINE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.29.0
          args:
            - --model=Qwen/Qwen3-8B
            - --max-model-len=4096
          resources: {limits: {nvidia.com/gpu: "1"}}
"""
PATCH = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  template:
    spec:
      containers:
        - name: vllm
          args:
            - --model=Qwen/Qwen3-8B
            - --max-model-len=40960
"""
JSON_PATCH = """\
patches:
- target: {kind: Deployment}
  patch: |-
    - op: replace
      path: /spec/template/spec/containers/0/args/1
      value: --max-model-len=40960"""
OVERLAYS = {
    "base/deployment.yaml": ENGINE,
    "base/kustomization.yaml": "resources: [deployment.yaml]\n",
    "overlays/dev/kustomization.yaml": "resources: [../../base]\nnamePrefix: dev-\n",
    "overlays/prod/kustomization.yaml": "resources: [../../base]\npatches: [{path: length.yaml}]\n",
    "overlays/prod/length.yaml": PATCH,
}
TEMPLATE = ENGINE.replace("4096", "{{ .Values.length }}").replace("name: llama}", "name: {{ .Release.Name }}}", 1)
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: serving\nversion: 1.0.0\n",
    "values.yaml": "length: 40960  # vllm\n",
    "templates/engine.yaml": TEMPLATE,
}
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`kvgate check` in a repository with these files; Helm and kubectl are on PATH."""
    assets = require_assets(pytestconfig, "helm", "kubectl")
    monkeypatch.setenv("PATH", f"{assets}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path(".git").mkdir()

    def run(files: dict[str, str | Path | bytes], *arguments: str) -> dict[str, Any]:
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                Path(name).symlink_to(content)
            else:
                Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        done = invoked("check", *(arguments or (".",)), "-o", "json")
        assert done.stdout, done.stderr
        return {**json.loads(done.stdout), "code": done.exit_code}

    return run


def engines(report: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    return [(each["file"], each["line"], each["name"], each["verdict"]) for each in report["documents"]]


def errors(report: dict[str, Any]) -> list[tuple[str, int, str]]:
    found = (finding for each in report["documents"] for finding in each["findings"] if finding["severity"] == "error")
    return [(each["file"], each["line"], each["rule"]) for each in found]


def test_an_engine_is_judged_in_each_overlay_and_not_in_the_base(check: Check) -> None:
    report = check(OVERLAYS)
    assert engines(report) == [
        ("base/deployment.yaml", 11, "dev-llama", "Fits"),
        ("base/deployment.yaml", 11, "llama", "DoesNotFit"),
    ]
    assert [each["rendered_by"] for each in report["documents"]] == [
        "overlays/dev/kustomization.yaml",
        "overlays/prod/kustomization.yaml",
    ]
    assert errors(report) == [("overlays/prod/length.yaml", 11, "KVCacheTooSmall")]
    assert report["code"] == 1


def test_a_value_that_the_base_has_is_shown_there(check: Check) -> None:
    report = check({**OVERLAYS, "base/deployment.yaml": ENGINE.replace("4096", "40960")}, "overlays/dev")
    assert errors(report) == [("base/deployment.yaml", 15, "KVCacheTooSmall")]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("images: [{name: vllm/vllm-openai, newTag: v0.1.0}]", 2),
        (JSON_PATCH, 7),
    ],
)  # fmt: skip
def test_a_value_that_the_kustomization_sets_is_shown_there(check: Check, change: str, place: int) -> None:
    report = check(
        {**OVERLAYS, "overlays/dev/kustomization.yaml": f"resources: [../../base]\n{change}\n"}, "overlays/dev"
    )
    (engine,) = report["documents"]
    assert ("overlays/dev/kustomization.yaml", place) in [(each["file"], each["line"]) for each in engine["findings"]]


def test_a_comment_of_the_base_ignores_in_every_overlay(check: Check) -> None:
    long = ENGINE.replace("4096", "39999  # kvgate:ignore KVCacheTooSmall known")
    report = check({**OVERLAYS, "base/deployment.yaml": long})
    assert [each["verdict"] for each in report["documents"]] == ["DoesNotFit", "DoesNotFit"]
    assert errors(report) == [("overlays/prod/length.yaml", 11, "KVCacheTooSmall")]


def test_what_is_not_in_the_checkout_is_left_out_and_said(check: Check) -> None:
    remote = "resources: [../../base, 'https://example.com/x.yaml', 'github.com/a/b//c?ref=d']\n"
    wanted = "replacements:\n- source: {kind: ConfigMap, name: c, fieldPath: data.TIER}\n"
    wanted += "  targets: [{select: {kind: Deployment}, fieldPaths: [spec.template.metadata.labels.app]}]\n"
    made = "configMapGenerator: [{name: c, envs: [made-at-a-deploy.env]}]\n"
    secret = "secretGenerator: [{name: s, envs: [secret.env]}]\nhelmCharts: [{name: x, repo: 'https://example.com'}]\n"
    report = check({**OVERLAYS, "overlays/dev/kustomization.yaml": remote + wanted + made + secret}, "overlays/dev")
    assert engines(report) == [("base/deployment.yaml", 11, "llama", "Fits")]
    (said,) = report["unrendered"]
    assert said["detail"] == "https://example.com/x.yaml, github.com/a/b//c?ref=d, made-at-a-deploy.env, helmCharts"


def test_an_overlay_that_cannot_be_rendered_leaves_its_base(check: Check) -> None:
    broken = "resources: [../../base]\npatches: [{path: length.yaml, target: {name: nobody}}, {patch: 'a: ['}]\n"
    report = check({**OVERLAYS, "overlays/prod/kustomization.yaml": broken, "overlays/dev/kustomization.yaml": "{}\n"})
    assert engines(report) == [("base/deployment.yaml", 11, "llama", "Fits")]
    assert [each["file"] for each in report["unrendered"]] == ["overlays/prod/kustomization.yaml"]
    assert report["code"] == 0


def test_an_overlay_that_is_named_and_cannot_be_rendered_is_an_error(check: Check) -> None:
    report = check(
        {**OVERLAYS, "overlays/dev/kustomization.yaml": "resources: [../../base]\npatches: [{patch: 'a: ['}]\n"},
        "overlays/dev",
    )
    assert [each["file"] for each in report["unreadable"]] == ["overlays/dev/kustomization.yaml"]
    assert report["code"] == 1


def schema(name: str) -> str:
    """Return a definition that is large enough to be left out."""
    versions = f"  versions:\n  - name: v1\n    # {'x' * 20000}\n    schema: {{openAPIV3Schema: {{type: object}}}}"
    head = f"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {name}}}\n"
    return f"{head}spec:\n  group: example.com\n{versions}"


@pytest.mark.parametrize(("path", "is_needed"), [("/spec", False), ("/spec/versions/0/name", True)])
def test_definitions_are_left_out_where_no_patch_needs_them(
    check: Check, monkeypatch: pytest.MonkeyPatch, path: str, *, is_needed: bool
) -> None:
    rendered = list[bytes]()
    run = programs.run_program

    def recorded(*arguments: Any) -> bytes | programs.Failed:
        done = run(*arguments)
        rendered.append(done if isinstance(done, bytes) else b"failed")
        return done

    monkeypatch.setattr("kvgate.documents.kustomize.run_program", recorded)
    patch = json.dumps([{"op": "add" if path == "/spec" else "replace", "path": path, "value": "v2"}])
    target = "target: {kind: CustomResourceDefinition, name: a.example.com}"
    files = {
        "base/crds.yaml": f"{schema('a.example.com')}\n---\n{ENGINE}---\n{schema('b.example.com')}",
        "base/kustomization.yaml": f"resources: [crds.yaml]\npatches: [{{{target}, patch: '{patch}'}}]\n",
    }
    assert engines(check(files)) == [("base/crds.yaml", 21, "llama", "Fits")]
    assert [b"openAPIV3Schema" in text for text in rendered] == ([False, True] if is_needed else [False])
    assert (b"failed" in rendered) is is_needed


@pytest.mark.parametrize("name", ["../outside", "/etc"])
def test_nothing_outside_of_the_checkout_is_read(check: Check, tmp_path: Path, name: str) -> None:
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kustomization.yaml").write_text("namePrefix: stolen-\n")
    report = check({**OVERLAYS, "kustomization.yaml": f"resources: [overlays/prod, {name}]\n"}, ".")
    assert "stolen" not in json.dumps(report["documents"])
    assert [each["detail"] for each in report["unrendered"]] == [name]


def test_objects_of_overlays_find_their_own_configmaps(check: Check) -> None:
    engine = ENGINE.replace("          args:\n", "          envFrom: [{configMapRef: {name: c}}]\n          args:\n")
    engine = engine.replace("=4096", "=$(LENGTH)")
    files = {**OVERLAYS, "base/deployment.yaml": engine}
    for overlay, length in (("dev", 4096), ("prod", 40960)):
        generator = f"generatorOptions: {{disableNameSuffixHash: true}}\nconfigMapGenerator: [{{name: c, literals: [LENGTH={length}]}}]\n"
        files[f"overlays/{overlay}/kustomization.yaml"] = f"resources: [../../base]\n{generator}"
    assert [each["verdict"] for each in check(files)["documents"] if each["file"].startswith("base")] == [
        "Fits",
        "DoesNotFit",
    ]


def test_a_chart_is_judged_with_its_values_and_found_in_its_template(check: Check) -> None:
    report = check({f"charts/x/{name}": text for name, text in CHART.items()})
    assert engines(report) == [("charts/x/templates/engine.yaml", 11, "kvgate-check", "DoesNotFit")]
    assert errors(report) == [("charts/x/values.yaml", 1, "KVCacheTooSmall")]
    assert report["documents"][0]["rendered_line"] > 11
    assert report["summary"]["skipped"] == {}


@pytest.mark.parametrize(
    ("comment", "ignored"),
    [("kvgate:ignore KVCacheTooSmall of vllm", 1), ("kvgate:ignore WeightsTooLarge of vllm", 0), ("of vllm", 0)],
)
def test_a_comment_in_a_file_of_values_answers_for_what_is_found_there(
    check: Check, comment: str, ignored: int
) -> None:
    files = {f"charts/x/{name}": text for name, text in CHART.items()}
    report = check({**files, "charts/x/values.yaml": f"length: 40960  # {comment}\n"})
    assert len(errors(report)) == 1 - ignored
    assert report["summary"].get("ignored", 0) == ignored


def test_values_beside_a_chart_and_given_ones_are_rendered_with_it(check: Check) -> None:
    files = {**CHART, "values-short.yaml": "length: 4096 # vllm\n", "values-same.yaml": "other: 1 # vllm\n"}
    files = {**{f"x/{name}": text for name, text in files.items()}, "prod.yaml": "length: 2048\n"}
    assert [(each["verdict"], each["rendered_by"]) for each in check(files)["documents"]] == [
        ("DoesNotFit", "x/Chart.yaml"),
        ("Fits", "x/values-short.yaml"),
    ]
    assert [each["verdict"] for each in check(files, "x", "-f", "prod.yaml")["documents"]] == ["Fits"]
    assert [each["verdict"] for each in check(files, "x", "-f", "prod.yaml", "--set", "length=40960")["documents"]] == [
        "DoesNotFit"
    ]


WITH_ARGUMENTS = TEMPLATE.replace(
    "            - --max-model-len={{ .Values.length }}\n", "            {{- toYaml .Values.more | nindent 12 }}\n"
)
WITH_RANGE = TEMPLATE.replace(
    "            - --max-model-len={{ .Values.length }}\n",
    """\
            {{- range $name, $value := .Values.options }}
            - --{{ $name }}={{ $value }}
            {{- end }}
""",
)


@pytest.mark.parametrize(
    ("template", "values", "arguments", "place"),
    [
        (TEMPLATE, "# vllm\nlength: 40960\n", (), ("x/values.yaml", 2)),
        (TEMPLATE, "# vllm\nlength: 4096\n", ("-f", "prod.yaml"), ("prod.yaml", 1)),
        (TEMPLATE, "# vllm\nlength: 4096\n", ("--set", "length=40959"), ("x/templates/engine.yaml", 15)),
        (TEMPLATE.replace(".length", ".of.engine"), "of:\n  # vllm\n  engine: 40960\n", (), ("x/values.yaml", 3)),
        (WITH_ARGUMENTS, "more:  # vllm\n- --max-model-len=40960\n", (), ("x/values.yaml", 2)),
        (WITH_RANGE, "options: {max-model-len: 40960}  # vllm\n", (), ("x/templates/engine.yaml", 14)),
    ],
)  # fmt: skip
def test_a_finding_stands_where_its_value_is_set_and_else_in_its_template(
    check: Check, template: str, values: str, arguments: tuple[str, ...], place: tuple[str, int]
) -> None:
    files = {**CHART, "templates/engine.yaml": template, "values.yaml": values}
    report = check(
        {**{f"x/{name}": text for name, text in files.items()}, "prod.yaml": "length: 40960\n"}, "x", *arguments
    )
    assert errors(report) == [(*place, "KVCacheTooSmall")]


def test_a_comment_of_the_template_ignores_what_its_values_set(check: Check) -> None:
    length = "--max-model-len={{ .Values.length }}"
    template = TEMPLATE.replace(length, f"{length}  # kvgate:ignore KVCacheTooSmall known")
    report = check({**{f"x/{name}": text for name, text in CHART.items()}, "x/templates/engine.yaml": template})
    assert (errors(report), report["summary"]["ignored"]) == ([], 1)


def test_a_local_dependency_needs_no_fetch(check: Check) -> None:
    files = {f"charts/engine/{name}": text for name, text in CHART.items()}
    files["charts/engine/Chart.yaml"] = "apiVersion: v2\nname: engine\nversion: 1.0.0\n"
    dependency = "dependencies: [{name: engine, version: 1.0.0, repository: 'file://../engine'}]\n"
    files["charts/all/Chart.yaml"] = f"apiVersion: v2\nname: all\nversion: 1.0.0\n{dependency}"
    files["charts/all/values.yaml"] = "engine: {length: 4096} # vllm\n"
    report = check(files, "charts/all")
    assert [each["verdict"] for each in report["documents"]] == ["Fits"]


def test_missing_dependencies_are_said_with_the_command_that_fetches_them(check: Check) -> None:
    dependency = "dependencies: [{name: z, version: 1.0.0, repository: 'https://example.com'}]\n"
    report = check(
        {**{f"x/{name}": text for name, text in CHART.items()}, "x/Chart.yaml": CHART["Chart.yaml"] + dependency}
    )
    assert [each["reason"] for each in report["unrendered"]] == [
        "not rendered: dependencies are missing: z; helm dependency build x"
    ]
    assert report["unreadable"] == []


@pytest.mark.parametrize(
    ("path", "unreadable", "unrendered"),
    [(".", [], [("x/templates/engine.yaml", 17)]), ("x", [("x/templates/engine.yaml", 17)], [])],
)
def test_a_broken_template_is_an_error_only_where_the_chart_is_named(
    check: Check, path: str, unreadable: list[Any], unrendered: list[Any]
) -> None:
    broken = {**CHART, "templates/engine.yaml": f"{TEMPLATE}{{{{ .Values.a.b.c }}}}\n"}
    report = check({**{f"x/{name}": text for name, text in broken.items()}, "pod.yaml": ENGINE}, path)
    assert [(each["file"], each["line"]) for each in report["unreadable"]] == unreadable
    assert [(each["file"], each["line"]) for each in report["unrendered"]] == unrendered
    if unreadable:
        assert "nil pointer" in report["unreadable"][0]["message"]
    assert report["code"] == (1 if unreadable else 0)


def test_without_the_programs_files_are_read_as_they_are_written(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: None)
    report = check({**OVERLAYS, **{f"x/{name}": text for name, text in CHART.items()}})
    assert ("base/deployment.yaml", 11, "llama", "Fits") in engines(report)
    assert {each["reason"] for each in report["unrendered"]} == {
        "not rendered: helm is not on PATH, so its files are read as they are written",
        "not rendered: kustomize and kubectl are not on PATH, so its files are read as they are written",
    }
    assert check({}, ".", "--render=never")["unrendered"] == []


def test_a_program_of_the_checkout_is_never_run(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bin").mkdir()
    for name in ("helm", "kubectl", "kustomize"):
        Path("bin", name).write_text("#!/bin/sh\ntouch sung\n")
        Path("bin", name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').resolve()}:bin")
    check({**OVERLAYS, **{f"x/{name}": text for name, text in CHART.items()}})
    assert not Path("sung").exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("while :; do :; done", "was stopped"),
        ("while :; do echo y; done", "its output has more than"),
        ("echo no >&2; exit 3", "no"),
        ("exit 3", "exit code 3"),
        ("exec >&-; while :; do :; done", "was stopped"),
    ],
)
def test_a_program_is_bounded_and_gets_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr(programs, "SECONDS", 0.3 if message == "was stopped" else 20)
    monkeypatch.setattr(programs, "MAX_OUTPUT_BYTES", 1 << 20)
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    done = programs.run_program(
        Path("/bin/sh"), ["-c", f'test -z "$GITHUB_TOKEN" || exit 9; {program}'], tmp_path.resolve()
    )
    assert isinstance(done, programs.Failed)
    assert message in done.message


@pytest.mark.parametrize("render", ["sandboxed", "allow-listed"])
def test_without_a_sandbox_nothing_is_rendered_unless_somebody_asks_for_it(
    check: Check, monkeypatch: pytest.MonkeyPatch, render: str
) -> None:
    monkeypatch.setattr(programs, "walls", tuple)
    report = check({**OVERLAYS, **{f"x/{name}": text for name, text in CHART.items()}}, ".", f"--render={render}")
    if render == "allow-listed":
        assert report["unrendered"] == []
        assert errors(report) == [
            ("overlays/prod/length.yaml", 11, "KVCacheTooSmall"),
            ("x/values.yaml", 1, "KVCacheTooSmall"),
        ]
        return
    (said,) = report["unrendered"]
    assert said["reason"].startswith("no chart and no kustomization is rendered, because this system offers neither")
    assert [(each["file"], each["rendered_by"]) for each in report["documents"]] == [("base/deployment.yaml", None)]


def test_what_a_program_sees_behind_each_wall(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """A dynamically linked shell: it reads its folder and system libraries, and it starts no other program."""
    require_walls(pytestconfig, confined.NAMESPACES, confined.LANDLOCK)
    (tmp_path / "inside").write_text("hello\n")
    (tmp_path.parent / f"outside-{tmp_path.name}").write_text("secret\n")
    shell = Path("/bin/sh").resolve()
    for wall in (confined.NAMESPACES, confined.LANDLOCK):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(programs, "wall", lambda wall=wall: wall)
            for script, answer in {
                f"read line < {tmp_path}/inside; echo $line $HOME": f"hello {tmp_path}/home\n".encode(),
                f"read line < {tmp_path.parent}/outside-{tmp_path.name}; echo $line": None,
                f"echo x > {tmp_path}/inside": None,
                f"echo x > {tmp_path}/home/new": None,
                "/bin/true": None,
                f"{shell} -c :": None,
                "(:)": None,
            }.items():
                done = programs.run_program(shell, ["-ec", script], tmp_path)
                assert done == answer or (answer is None and isinstance(done, programs.Failed)), (wall, script, done)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("transformers: [x.yaml]", "kvgate does not hand the field 'transformers' to kustomize"),
        ("patches: [{Path: length.yaml}]", "kvgate does not hand the field 'Path' in patches[0] to kustomize"),
        ("configurations: {a: b}", "Expected `array | null`, got `object` - at `$.configurations`"),
    ],
)
def test_an_overlay_with_another_field_is_not_rendered(check: Check, field: str, reason: str) -> None:
    files = {**OVERLAYS, "overlays/dev/kustomization.yaml": f"resources: [../../base]\n{field}\n"}
    report = check(files)
    (said,) = report["unrendered"]
    assert said["reason"].startswith(
        f"not rendered: kustomization.yaml: {reason}; if you trust it, render it yourself: "
    )
    assert check({}, "overlays/dev")["code"] == 1, "an error where somebody names it"


def test_an_overlay_keeps_what_its_files_are_called(check: Check) -> None:
    """Files above the overlay, keys of ConfigMaps, patches written in place, and fields of objects of another kind."""
    fields = """\
resources: [../../base]
namespace: serving
configurations: [../../shared/names.yaml]
generatorOptions: {disableNameSuffixHash: true}
configMapGenerator: [{name: c, files: [../../shared/a.txt, b=../../shared/a.txt], envs: [../../shared/length.env]}]
patchesStrategicMerge:
- |
  apiVersion: apps/v1
  kind: Deployment
  metadata: {name: llama, labels: {a: b}}
- ../../shared/patch.yaml
"""
    engine = ENGINE.replace("          args:\n", "          envFrom: [{configMapRef: {name: c}}]\n          args:\n")
    files = {
        **OVERLAYS, "base/deployment.yaml": engine.replace("=4096", "=$(LENGTH)"), "overlays/dev/kustomization.yaml": fields,
        "shared/a.txt": "a", "shared/length.env": "LENGTH=40960\n", "shared/names.yaml": "nameReference: []\n",
        "shared/patch.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llama, labels: {c: d}}\n",
    }  # fmt: skip
    report = check(files, "overlays/dev")
    assert [(each["namespace"], each["verdict"]) for each in report["documents"]] == [("serving", "DoesNotFit")]


def test_a_failure_names_the_files_of_the_checkout(check: Check) -> None:
    files = {
        **OVERLAYS,
        "base/deployment.yaml": ENGINE,
        "base/broken.yaml": "a: [\n",
        "base/kustomization.yaml": "resources: [broken.yaml]\n",
    }
    report = check(files, "overlays/prod")
    assert "broken.yaml" in json.dumps(report["unreadable"])
    assert "kvgate-" not in json.dumps(report["unreadable"])


@pytest.mark.parametrize(
    ("words", "values", "others"),
    [
        (["--values=a.yaml,b.yaml", "-f", "c.yaml"], ["a.yaml", "b.yaml", "c.yaml"], []),
        (
            ["--set-string", "a=b=c", "-n=x", "--include-crds"],
            [],
            ["--set-string=a=b=c", "--namespace=x", "--include-crds"],
        ),
        (["--post-renderer=./x"], None, "--post-renderer is not passed on to Helm"),
        (["--include-crds=true"], None, "--include-crds is not passed on to Helm"),
        (["../chart"], None, "../chart is not passed on to Helm"),
        (["--set"], None, "--set needs a value"),
    ],
)
def test_arguments_of_helm_template(words: list[str], values: list[str] | None, others: list[str] | str) -> None:
    if values is None:
        with pytest.raises(ValueError, match=str(others)):
            helm.template_arguments(words)
    else:
        assert helm.template_arguments(words) == (list(map(Path, values)), others)


BIG = "x" * (1 << 20)
BASE = {"base/deployment.yaml": ENGINE, "base/kustomization.yaml": "resources: [deployment.yaml]\n"}
TOO_LARGE = "not rendered: its files, each as often as it is named, have more than 64 MiB"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"o/kustomization.yaml": "resources: [../base]\ncommonAnnotations: {note: '\U0001f600'}\n"}, ["llama"]),
        ({"o/kustomization.yaml": "resources: [../base]\nimageTags: [{name: x, newTag: b}]\n"}, ["llama"]),
        ({"o/kustomization.yaml": "resources: [../base]\nconfigMapGenerator: [{name: c, env: null}]\n"}, ["llama"]),
        ({"o/kustomization.yaml": "resources: [../link]\nnamePrefix: a-\n", "link": Path("base")}, ["a-llama"]),
        ({"o/kustomization.yaml": "resources: [../up/base]\nnamePrefix: a-\n", "up": Path()}, ["a-llama"]),
        (
            {"o/kustomization.yaml": "resources: [../link, ../base]\nnamePrefix: a-\n", "link": Path("other"),
             "other/deployment.yaml": ENGINE.replace("llama", "qwen"), "other/kustomization.yaml": "resources: [deployment.yaml]\n"},
            ["a-llama", "a-qwen"],
        ),
    ],
)  # fmt: skip
def test_an_overlay_with_ordinary_fields_is_rendered(check: Check, files: dict[str, Any], names: list[str]) -> None:
    report = check({**BASE, **files})
    assert report["unrendered"] == []
    assert sorted(each["name"] for each in report["documents"]) == names


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        (f"commonAnnotations: {{a: &a {BIG[: 900 << 10]}}}\nimages: [{'*a, ' * 10_000}]", {}),
        (f'patchesStrategicMerge:\n- &a "a\\n{BIG[: 900 << 10]}"\n' + "- *a\n" * 100, {}),
        (f"configMapGenerator: [{{name: c, files: [{', '.join(f'k{n}=big' for n in range(100))}]}}]", {"big": BIG}),
    ],
)
def test_a_copy_is_bounded_whatever_an_overlay_names_how_often(
    check: Check, fields: str, files: dict[str, str]
) -> None:
    files = {f"o/{name}": text for name, text in files.items()}
    report = check({**BASE, **files, "o/kustomization.yaml": f"resources: [../base]\n{fields}\n"})
    assert [each["reason"].partition(";")[0] for each in report["unrendered"]] == [TOO_LARGE]
    assert [each["name"] for each in report["documents"]] == ["llama"], "its base is judged"


def test_a_file_of_replacements_is_read_once_however_often_it_is_named(check: Check) -> None:
    replacements = "replacements:\n" + "- {path: big.yaml}\n" * 60
    files = {"o/big.yaml": "- a\n" * 250_000, "o/kustomization.yaml": f"resources: [../base, missing]\n{replacements}"}
    start = time.process_time()
    check({**BASE, **files})
    assert time.process_time() - start < 10


def test_an_overlay_of_many_objects_takes_no_time_for_each_pair(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = "".join(f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n}}}\n" for n in range(1000))
    files = {**BASE, "base/kustomization.yaml": "resources: [deployment.yaml, many.yaml]\n", "base/many.yaml": objects}
    asked = Mock(side_effect=kustomize._name)
    monkeypatch.setattr(kustomize, "_name", asked)
    assert [each["name"] for each in check(files)["documents"]] == ["llama"]
    assert 1000 < asked.call_count < 3000


@pytest.mark.parametrize(
    ("files", "is_judged"),
    [
        ({"x/Chart.yaml": "dependencies: [{name: \"a\\0b\", version: 1.0.0, repository: 'file://../y'}]\n"}, False),
        (
            {"x/Chart.yaml": f"dependencies: [{{name: {'a' * 300}, version: 1.0.0, repository: 'file://../y'}}]\n"},
            False,
        ),
        ({"x/Chart.yaml": "dependencies: [{name: .., version: 1.0.0, repository: 'file://../y'}]\n"}, False),
        (
            {"x/Chart.yaml": "dependencies: [{name: y, version: 1.0.0, repository: 'file://../y'}]\n", "x/charts": "a"},
            False,
        ),
        ({"x/charts/y.tgz": b"no archive"}, False),
        ({"x/charts/y.tgz": gzip.compress(b"a" * 2000)}, False),
        ({"x/charts/y.tgz": gzip.compress(b"\0" * (1 << 20)) * 65}, False),
        ({"x/values-big.yaml": f"a: {BIG}{BIG} # vllm\n"}, True),
        ({"x/ci": Path("/etc")}, True),
        ({"loop.yaml": Path("loop.yaml")}, True),
        ({"loop/kustomization.yaml": Path("kustomization.yaml")}, True),
    ],
)
def test_no_file_ends_the_check(check: Check, files: dict[str, Any], *, is_judged: bool) -> None:
    files = {**{f"x/{name}": text for name, text in CHART.items()}, "y/Chart.yaml": CHART["Chart.yaml"], **files}
    files["x/Chart.yaml"] = CHART["Chart.yaml"] + files["x/Chart.yaml"].removeprefix(CHART["Chart.yaml"])
    report = check(files)
    assert bool(report["documents"]) == is_judged
    assert is_judged or [each["file"] for each in report["unrendered"]] == ["x/Chart.yaml"]


def test_dependencies_are_bounded_together(check: Check) -> None:
    each = ", ".join(f"{{name: a{n}, version: 1.0.0, repository: 'file://../y'}}" for n in range(200))
    files = {"x/values.yaml": "a: 1 # vllm\n", "y/Chart.yaml": CHART["Chart.yaml"], "y/big": BIG}
    report = check({**files, "x/Chart.yaml": f"{CHART['Chart.yaml']}dependencies: [{each}]\n"})
    assert "more than 5000 files or 64 MiB" in report["unrendered"][0]["reason"]
