"""The readers of charts' values, and of what passes values on to charts: files, HelmReleases, Applications, HelmCharts."""

from collections.abc import Callable, Iterator

from kvgate.manifests.platforms import app_template, gitops, kubeai, llm_d, production_stack
from kvgate.manifests.platforms.charts import ChartInput, ChartInputs, is_chart_file, read_charts
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput

PARALLELISM = "parallelism: tensor, pipeline, data, dataLocal, expert"
"""Fields that LLMInferenceService and the llm-d-modelservice chart share."""

CHARTS: tuple[Reader, ...] = (
    Reader(
        platform="production-stack",
        what="values of the production-stack chart (servingEngineSpec.modelSpec)",
        reads=(
            "repository, tag, modelURL, enableLoRA, pvcStorage, affinity, nodeSelectorTerms",
            "requestGPU, requestGPUType, requestGPUMem, resources",
            "vllmConfig",
            "lmcacheConfig",
        ),
        recognises=lambda given: production_stack.is_values(given.values),
        words=("servingenginespec",),
        read=production_stack.read_values,
    ),
    Reader(
        platform="llm-d",
        what="values of the llm-d-modelservice chart (modelArtifacts with decode or prefill)",
        reads=(
            "modelArtifacts: uri, name, size",
            f"decode, prefill: {PARALLELISM}, workers; acceleratorTypes; containers",
            "accelerator: type, dra",
        ),
        recognises=lambda given: llm_d.is_values(given.values),
        words=("modelartifacts", "modelservice", "llm-d", "vllm"),
        read=llm_d.read_values,
    ),
    Reader(
        platform="kubeai",
        what="values of KubeAI's models chart (catalog)",
        reads=(
            "enabled, engine, url, args, resourceProfile; of a model that is only enabled, what the chart has for its name",
        ),
        recognises=lambda given: kubeai.is_catalog(given.values),
        words=("kubeai", "vllm", "catalog:", 'catalog"', "catalog'", "catalog :"),
        read=kubeai.read_catalog,
    ),
    Reader(
        platform="app-template",
        what="values of bjw-s' app-template chart and of its library common (controllers with containers)",
        reads=(
            "controllers: pod, containers: image, command, args, env, envFrom, resources",
            "defaultPodOptions: nodeSelector, affinity",
            "persistence: emptyDir, existingClaim, size, globalMounts, advancedMounts",
        ),
        recognises=lambda given: app_template.is_values(given.values),
        read=app_template.read_values,
    ),
)
"""Charts whose values are known; also where these stand inside something else."""


def _charts_through(inputs: ChartInputs) -> Callable[[ReaderInput], Iterator[FoundEngine]]:
    return lambda given: read_charts(given, inputs, CHARTS)


PASSED_ON: tuple[Reader, ...] = (
    Reader(
        platform="flux",
        what="`HelmRelease` (helm.toolkit.fluxcd.io) of a chart named here, or of an umbrella around one; ConfigMaps of the same input",
        reads=("values", "valuesFrom: ConfigMaps without targetPath"),
        kinds=("HelmRelease.helm.toolkit.fluxcd.io",),
        supporting=("ConfigMap",),
        bystanders=frozenset({"HelmRepository", "OCIRepository", "GitRepository"}),
        is_in_cluster=False,
        read=_charts_through(gitops.values_of_release),
    ),
    Reader(
        platform="argo-cd",
        what="`Application` (argoproj.io) of a chart named here, or of an umbrella around one",
        reads=("source, sources: helm.valuesObject, helm.values, helm.parameters",),
        kinds=("Application.argoproj.io",),
        bystanders=frozenset({"AppProject"}),
        is_in_cluster=False,
        read=_charts_through(gitops.values_of_application),
    ),
    Reader(
        platform="argo-cd",
        what="the template of an `ApplicationSet` (argoproj.io)",
        reads=("as of an `Application`",),
        kinds=("ApplicationSet.argoproj.io",),
        is_in_cluster=False,
        read=_charts_through(gitops.values_of_application),
    ),
    Reader(
        platform="helm",
        what="`HelmChart` (helm.cattle.io) of K3s and RKE2, of a chart named here, or of an umbrella around one",
        reads=("valuesContent", "set"),
        kinds=("HelmChart.helm.cattle.io", "HelmChartConfig.helm.cattle.io"),
        is_in_cluster=False,
        read=_charts_through(gitops.values_of_helm_chart),
    ),
    Reader(
        platform="helm",
        what="values of an umbrella chart, with those of a chart named here under a dependency's name or alias, one or two levels deep",
        reads=("the fields of that chart",),
        recognises=lambda given: not given.document.kind,
        supports=is_chart_file,
        read=_charts_through(lambda given: (ChartInput(given=given),)),
    ),
)  # fmt: skip
"""Objects and files that pass values on to a chart."""
