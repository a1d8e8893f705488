"""READERS: who recognises which document; the first one wins."""

from collections.abc import Callable, Iterator

from kvgate.manifests.platforms import (
    argo_cd,
    compose,
    dynamo,
    flux,
    kaito,
    kserve,
    kserve_llm,
    kubeai,
    llm_d,
    production_stack,
    ray_serve,
)
from kvgate.manifests.platforms.chart_values import Hand, handed_by_file, read_handed
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.pods import pod_engines
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine
from kvgate.manifests.pods.pod_engines import Input


def _of_kind(kind: str, *groups: str) -> Callable[[Input], bool]:
    return lambda given: given.document.kind == kind and given.document.api_version.partition("/")[0] in groups


TEMPLATES = frozenset({"LLMInferenceServiceConfig", "ServingRuntime", "ClusterServingRuntime"})
"""Kinds that others are made from: read where something refers to them."""
_POD_FIELDS = (
    "containers, sidecars in initContainers: image, command, args, env, envFrom, resources, startupProbe, livenessProbe, volumeMounts",
    "nodeSelector, affinity (required), volumes, hostIPC",
)
_PARALLELISM = "parallelism: tensor, pipeline, data, dataLocal, expert"

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
        read=production_stack.read_values,
    ),
    Reader(
        platform="llm-d",
        what="values of the llm-d-modelservice chart (modelArtifacts with decode or prefill)",
        reads=(
            "modelArtifacts: uri, name, size",
            f"decode, prefill: {_PARALLELISM}, workers; acceleratorTypes; containers",
            "accelerator: type, dra",
        ),
        recognises=lambda given: llm_d.is_values(given.values),
        read=llm_d.read_values,
    ),
    Reader(
        platform="kubeai",
        what="values of KubeAI's models chart (catalog)",
        reads=("enabled, engine, url, args, resourceProfile",),
        recognises=lambda given: kubeai.is_catalog(given.values),
        read=kubeai.read_catalog,
    ),
)
"""Charts whose values are known; also where these stand inside something else."""


def _through(hand: Hand) -> Callable[[Input], Iterator[FoundEngine]]:
    return lambda given: read_handed(given, hand, CHARTS)


READERS: tuple[Reader, ...] = (
    Reader(
        platform="production-stack",
        what="`VLLMRuntime` (production-stack.vllm.ai)",
        reads=("model", "vllmConfig", "lmCacheConfig", "storageConfig", "deploymentConfig: image, resources"),
        recognises=_of_kind("VLLMRuntime", "production-stack.vllm.ai", "serving.vllm.ai"),
        read=production_stack.read_runtime,
    ),
    Reader(
        platform="kserve",
        what="`LLMInferenceService` (serving.kserve.io), with every `LLMInferenceServiceConfig` of its baseRefs in the same input",
        reads=("model: uri, name, lora", "speculator", _PARALLELISM, "template, worker: containers", "prefill: the same"),
        recognises=_of_kind("LLMInferenceService", "serving.kserve.io"),
        read=kserve_llm.read_llm_inference_service,
    ),
    Reader(
        platform="kserve",
        what="`InferenceService` (serving.kserve.io) of KServe's Hugging Face server or of a vLLM `ServingRuntime` in the same input",
        reads=(
            "predictor.model: modelFormat, runtime, args, env, storageUri, storage.path, resources",
            "predictor.workerSpec: tensorParallelSize, pipelineParallelSize", "predictor.containers",
        ),
        recognises=_of_kind("InferenceService", "serving.kserve.io"),
        read=kserve.read_inference_service,
    ),
    Reader(
        platform="kubeai",
        what="`Model` (kubeai.org) with engine VLLM; profiles of KubeAI's values or its ConfigMap in the same input",
        reads=("url", "args", "image", "resourceProfile"),
        recognises=_of_kind("Model", "kubeai.org"),
        read=kubeai.read_model,
    ),
    Reader(
        platform="kaito",
        what="`Workspace` (kaito.sh), with the ConfigMap of inference.config in the same input",
        reads=("resource: instanceType, count, labelSelector, mig", "inference: preset, config, template"),
        recognises=_of_kind("Workspace", "kaito.sh"),
        read=kaito.read_workspace,
    ),
    Reader(
        platform="kaito",
        what="`InferenceSet` (kaito.sh)",
        reads=("template: inference, resource",),
        recognises=_of_kind("InferenceSet", "kaito.sh"),
        read=kaito.read_inference_set,
    ),
    Reader(
        platform="kaito",
        what="`MultiRoleInference` (kaito.sh)",
        reads=("model.name", "roles: instanceType, inferenceConfig"),
        recognises=_of_kind("MultiRoleInference", "kaito.sh"),
        read=kaito.read_multi_role,
    ),
    Reader(
        platform="dynamo",
        what="`DynamoGraphDeployment` (nvidia.com), v1alpha1 and v1beta1; workers that run `dynamo.vllm`",
        reads=("services: resources.limits.gpu, multinode, sharedMemory, extraPodSpec", "components: podTemplate, multinode"),
        recognises=_of_kind("DynamoGraphDeployment", "nvidia.com"),
        read=dynamo.read_graph,
    ),
    Reader(
        platform="dynamo",
        what="`DynamoComponentDeployment` (nvidia.com)",
        reads=("resources.limits.gpu, multinode, sharedMemory, extraPodSpec",),
        recognises=_of_kind("DynamoComponentDeployment", "nvidia.com"),
        read=dynamo.read_component,
    ),
    Reader(
        platform="ray-serve",
        what="`RayService` (ray.io) whose serveConfigV2 has LLM configs",
        reads=("serveConfigV2, as below", "rayClusterConfig: image and nodes of the workers that have GPUs"),
        recognises=_of_kind("RayService", "ray.io"),
        read=ray_serve.read_ray_service,
    ),
    Reader(
        platform="kubernetes",
        what="Pod, Deployment, StatefulSet, ReplicaSet, DaemonSet, Job, CronJob, `Rollout` (argoproj.io), `LeaderWorkerSet`",
        reads=(*_POD_FIELDS, "volumeClaimTemplates; leaderWorkerTemplate.size"),
        recognises=lambda given: pod_engines.is_workload(given.document.kind, given.document.api_version),
        read=pod_engines.read_workload,
    ),
    *CHARTS,
    Reader(
        platform="ray-serve",
        what="Ray Serve configurations (applications with llm_configs, prefill_config, decode_config)",
        reads=(
            "model_loading_config", "accelerator_type", "engine_kwargs", "placement_group_config", "runtime_env.pip (vllm==…)",
        ),
        recognises=lambda given: ray_serve.is_serve_config(given.root),
        read=ray_serve.read_serve_config,
    ),
    Reader(
        platform="ray-serve",
        what="a file with one LLM config of Ray Serve (model_loading_config)",
        reads=("the same",),
        recognises=lambda given: ray_serve.is_llm_config(given.root),
        read=ray_serve.read_llm_config,
    ),
    Reader(
        platform=COMPOSE,
        what="services of docker-compose",
        reads=(
            "image, entrypoint, command, environment, gpus, deploy.resources.reservations.devices, shm_size, ipc",
            "`.env` beside the file, and what env_file names in its folder",
        ),
        recognises=compose.is_compose,
        read=compose.read_compose,
    ),
    Reader(
        platform="flux",
        what="`HelmRelease` (helm.toolkit.fluxcd.io) of a chart named here, or of an umbrella around one; ConfigMaps of the same input",
        reads=("values", "valuesFrom: ConfigMaps without targetPath"),
        recognises=_of_kind("HelmRelease", "helm.toolkit.fluxcd.io"),
        read=_through(flux.handed_by_release),
    ),
    Reader(
        platform="argo-cd",
        what="`Application` (argoproj.io) of such a chart",
        reads=("source, sources: helm.valuesObject, helm.values, helm.parameters",),
        recognises=_of_kind("Application", "argoproj.io"),
        read=_through(argo_cd.handed_by_application),
    ),
    Reader(
        platform="argo-cd",
        what="the template of an `ApplicationSet` (argoproj.io)",
        reads=("the same",),
        recognises=_of_kind("ApplicationSet", "argoproj.io"),
        read=_through(argo_cd.handed_by_application),
    ),
    Reader(
        platform="helm",
        what="values of an umbrella chart, with those of a chart named here under a dependency's name or alias, one or two levels deep",
        reads=("the same",),
        recognises=lambda given: not given.document.kind,
        read=_through(handed_by_file),
    ),
    Reader(
        platform="(other kinds)",
        what="any other object with a list of containers somewhere, such as a `RayCluster`, a `DisaggregatedSet` or a Knative `Service`",
        reads=_POD_FIELDS,
        recognises=lambda given: given.document.kind not in TEMPLATES and next(pod_engines.read_pod_templates(given), None) is not None,
        read=pod_engines.read_pod_templates,
    ),
)  # fmt: skip


def engines_in(given: Input) -> tuple[FoundEngine, ...] | None:
    """The engines of a document; None where nobody recognises it."""
    reader = next((reader for reader in READERS if reader.recognises(given)), None)
    return tuple(reader.read(given)) if reader else None
