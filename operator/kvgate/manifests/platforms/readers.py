"""READERS: every reader of a platform's documents, and what follows from all of them together."""

from functools import cache

from kvgate.documents.launch_files import Form
from kvgate.manifests.platforms import (
    compose,
    dstack,
    kaito,
    kserve,
    kubeai,
    launch_scripts,
    llm_d_benchmark,
    llmaz,
    llmkube,
    ome,
    production_stack,
    ray_serve,
    roles,
    skypilot,
    vllm_recipes,
)
from kvgate.manifests.platforms.chart_readers import CHARTS, PARALLELISM, PASSED_ON
from kvgate.manifests.platforms.mapped_values import read_mapped_values
from kvgate.manifests.platforms.reader import Reader, installed_readers, name_of_kind, resource_of_kind
from kvgate.manifests.pods import pod_engines
from kvgate.manifests.pods.engine_found import COMPOSE, FoundEngine, ReaderInput
from kvgate.manifests.pods.which_engine import ENGINES

_RAY_WORDS = ("llm_configs", "model_loading_config", "vllm")
_POD_FIELDS = (
    "containers, sidecars in initContainers: image, command, args, env, envFrom, resources, startupProbe, livenessProbe, volumeMounts",
    "nodeSelector, affinity (required), volumes, hostIPC",
)
_POD_SUPPORT = (
    "ConfigMap",
    "PersistentVolumeClaim",
    "ResourceClaim.resource.k8s.io",
    "ResourceClaimTemplate.resource.k8s.io",
    "DeviceClass.resource.k8s.io",
    "ComputeClass.cloud.google.com",
    "NodePool.karpenter.sh",
)
_BYSTANDERS = frozenset({
    "Service", "Ingress", "HTTPRoute", "Gateway", "Secret", "ServiceAccount", "Role", "ClusterRole", "RoleBinding",
    "ClusterRoleBinding", "PersistentVolume", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Namespace",
    "ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "CustomResourceDefinition", "InferencePool", "InferenceModel",
    "InferenceObjective", "Certificate", "Issuer", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration",
    "Kustomization", "VirtualService", "DestinationRule", "EnvoyFilter", "GRPCRoute", "TCPRoute", "ReferenceGrant", "Route",
    "IngressRoute", "ServiceEntry", "AuthorizationPolicy", "StorageClass", "EnvoyPatchPolicy", "BackendTrafficPolicy",
    "ClientTrafficPolicy", "SecurityPolicy", "AIGatewayRoute", "AIServiceBackend", "GCPBackendPolicy", "HealthCheckPolicy",
    "PodMonitoring", "ClusterPodMonitoring", "ScrapeConfig", "Probe", "GrafanaDashboard", "ResourceQuota", "LimitRange",
    "ExternalSecret", "SecretStore", "ClusterSecretStore", "SealedSecret", "VerticalPodAutoscaler", "TriggerAuthentication",
    "PriorityClass", "NodePool", "EC2NodeClass", "ResourceFlavor", "ClusterQueue", "LocalQueue", "ImageStream",
})  # fmt: skip
"""Kinds of Kubernetes and of operators that people use with any platform."""


def _has_engines_in_containers(given: ReaderInput) -> bool:
    """Return whether an object holds an engine itself; a supporting one counts where another object refers to it."""
    return given.document.kind not in supporting_kinds() and any(True for _ in pod_engines.read_object(given))


READERS: tuple[Reader, ...] = (
    Reader(
        platform="production-stack",
        what="`VLLMRuntime` (production-stack.vllm.ai)",
        reads=("model", "vllmConfig", "lmCacheConfig", "storageConfig", "deploymentConfig: image, resources"),
        kinds=("VLLMRuntime.production-stack.vllm.ai", "VLLMRuntime.serving.vllm.ai"),
        bystanders=frozenset({"VLLMRouter", "CacheServer", "LoraAdapter"}),
        read=production_stack.read_runtime,
    ),
    Reader(
        platform="kserve",
        what="`LLMInferenceService` (serving.kserve.io), with every `LLMInferenceServiceConfig` of its baseRefs in the same input",
        reads=("model: uri, name, lora", "speculator", PARALLELISM, "template, worker: containers", "prefill: the same fields"),
        kinds=("LLMInferenceService.serving.kserve.io",),
        words=("kserve", "vllm"),
        supporting=("LLMInferenceServiceConfig.serving.kserve.io",),
        read=kserve.read_llm_inference_service,
    ),
    Reader(
        platform="kserve",
        what="`InferenceService` (serving.kserve.io) of KServe's Hugging Face server or of a vLLM `ServingRuntime` in the same input",
        reads=(
            "predictor.model: modelFormat, runtime, args, env, storageUri, storage.path, resources",
            "predictor.workerSpec: tensorParallelSize, pipelineParallelSize", "predictor.containers",
        ),
        kinds=("InferenceService.serving.kserve.io",),
        words=("kserve", "vllm"),
        supporting=("ServingRuntime.serving.kserve.io", "ClusterServingRuntime.serving.kserve.io"),
        read=kserve.read_inference_service,
    ),
    Reader(
        platform="kserve",
        what="`ServingRuntime` and `ClusterServingRuntime` (serving.kserve.io) with vLLM and a model, of no service of the input",
        reads=("containers",),
        kinds=("ServingRuntime.serving.kserve.io", "ClusterServingRuntime.serving.kserve.io"),
        words=("kserve", "vllm"),
        read=kserve.read_runtime,
    ),
    Reader(
        platform="kubeai",
        what="`Model` (kubeai.org) with engine VLLM; profiles of KubeAI's values or its ConfigMap in the same input",
        reads=("url", "args", "image", "resourceProfile"),
        kinds=("Model.kubeai.org",),
        words=("kubeai", "vllm"),
        supporting=("ConfigMap",),
        supports=lambda given: kubeai.has_profiles(given.root),
        read=kubeai.read_model,
    ),
    Reader(
        platform="kaito",
        what="`Workspace` (kaito.sh), with the ConfigMap of inference.config in the same input",
        reads=("resource: instanceType, count, labelSelector, mig", "inference: preset, config, template"),
        kinds=("Workspace.kaito.sh",),
        words=("kaito.sh", "vllm"),
        supporting=("ConfigMap",),
        read=kaito.read_workspace,
    ),
    Reader(
        platform="kaito",
        what="`InferenceSet` (kaito.sh)",
        reads=("template: inference, resource",),
        kinds=("InferenceSet.kaito.sh",),
        words=("kaito.sh", "vllm"),
        supporting=("ConfigMap",),
        read=kaito.read_workspace,
    ),
    Reader(
        platform="kaito",
        what="`MultiRoleInference` (kaito.sh)",
        reads=("model.name", "roles: instanceType, inferenceConfig"),
        kinds=("MultiRoleInference.kaito.sh",),
        words=("kaito.sh", "vllm"),
        supporting=("ConfigMap",),
        read=kaito.read_multi_role,
    ),
    Reader(
        platform="dynamo",
        what="`DynamoGraphDeployment` (nvidia.com), v1alpha1 and v1beta1; workers that run `dynamo.vllm`",
        reads=(
            "services: resources.limits.gpu, multinode, sharedMemory, extraPodSpec, envs",
            "components: podTemplate, multinode, sharedMemorySize",
            "env, envs of the graph",
        ),
        kinds=("DynamoGraphDeployment.nvidia.com",),
        words=("dynamo", "vllm"),
        read=roles.read_graph,
    ),
    Reader(
        platform="dynamo",
        what="`DynamoComponentDeployment` (nvidia.com)",
        reads=("resources.limits.gpu, multinode, sharedMemory, extraPodSpec, envs",),
        kinds=("DynamoComponentDeployment.nvidia.com",),
        words=("dynamo", "vllm"),
        read=roles.read_component,
    ),
    Reader(
        platform="kthena",
        what="`ModelServing` (workload.serving.volcano.sh)",
        reads=("template.roles: entryTemplate, workerTemplate, workerReplicas",),
        kinds=("ModelServing.workload.serving.volcano.sh",),
        words=("kthena", "vllm"),
        supporting=_POD_SUPPORT,
        bystanders=frozenset({"ModelServer", "ModelRoute", "AutoscalingPolicy", "AutoscalingPolicyBinding"}),
        read=roles.read_model_serving,
    ),
    Reader(
        platform="kthena",
        what="`ModelBooster` (workload.serving.volcano.sh) of type vLLM or vLLMDisaggregated",
        reads=("backend: type, modelURI, env", "backend.workers: type, image, pods, resources, affinity, config"),
        kinds=("ModelBooster.workload.serving.volcano.sh",),
        read=roles.read_model_booster,
    ),
    Reader(
        platform="aibrix",
        what="`StormService`, `RoleSet` and `PodSet` (orchestration.aibrix.ai)",
        reads=("roles: template, podGroupSize",),
        kinds=tuple(f"{kind}.orchestration.aibrix.ai" for kind in ("StormService", "RoleSet", "PodSet")),
        words=("aibrix", "vllm"),
        supporting=_POD_SUPPORT,
        bystanders=frozenset({"PodAutoscaler", "ModelAdapter", "KVCache"}),
        read=roles.read_storm_service,
    ),
    Reader(
        platform="aibrix",
        what="`ModelClaim` (model.aibrix.ai) with engine vllm",
        reads=("artifactURL, modelName", "engineConfig.args"),
        kinds=("ModelClaim.model.aibrix.ai",),
        words=("aibrix", "vllm"),
        read=roles.read_model_claim,
    ),
    Reader(
        platform="ome",
        what="`InferenceService` (ome.io), with its runtime, base model and accelerator class in the same input",
        reads=(
            "engine, decoder: runner, leader, worker.size", "model.name: storageUri of the BaseModel",
            "acceleratorSelector, acceleratorOverride: acceleratorClass",
        ),
        kinds=("InferenceService.ome.io",),
        words=("ome.io", "vllm"),
        supporting=(
            "ServingRuntime.ome.io", "ClusterServingRuntime.ome.io", "BaseModel.ome.io", "ClusterBaseModel.ome.io",
            "AcceleratorClass.ome.io", *_POD_SUPPORT,
        ),
        read=ome.read_service,
    ),
    Reader(
        platform="ome",
        what="`ServingRuntime` and `ClusterServingRuntime` (ome.io) with vLLM and a model, of no service of the input",
        reads=("engineConfig, decoderConfig: runner, leader, worker.size", "acceleratorRequirements", "metadata.name, for the model"),
        kinds=("ServingRuntime.ome.io", "ClusterServingRuntime.ome.io"),
        read=ome.read_runtime,
    ),
    Reader(
        platform="llmkube",
        what="`InferenceService` (inference.llmkube.dev) with runtime vllm or generic, and its `Model` in the same input",
        reads=("vllmConfig, extraArgs, parallelSlots, image, env", "resources: gpu, gpuSharing", "Model: source, hardware.gpu"),
        kinds=("InferenceService.inference.llmkube.dev",),
        supporting=("Model.inference.llmkube.dev", *_POD_SUPPORT),
        read=llmkube.read_service,
    ),
    Reader(
        platform="llmaz",
        what="`Playground` (inference.llmaz.io) whose backend is vLLM, with its `BackendRuntime` and `OpenModel` in the same input",
        reads=(
            "modelClaim, modelClaims", "backendRuntimeConfig: backendName, version, args",
            "OpenModel: source.modelHub.modelID, source.uri, inferenceConfig.flavors",
            "BackendRuntime: command, image, version, recommendedConfigs.args",
        ),
        kinds=("Playground.inference.llmaz.io",),
        words=("llmaz.io", "vllm"),
        supporting=("OpenModel.llmaz.io", "BackendRuntime.inference.llmaz.io"),
        read=llmaz.read_playground,
    ),
    Reader(
        platform="ray-serve",
        what="`RayService` (ray.io) whose serveConfigV2 has LLM configs, or applications that start vLLM themselves",
        reads=(
            "serveConfigV2, as below, else models and sizes in env_vars of an application that is Python",
            "rayClusterConfig: image and nodes of the workers that have GPUs",
        ),
        kinds=("RayService.ray.io",),
        words=_RAY_WORDS,
        read=ray_serve.read_ray_service,
    ),
    Reader(
        platform="kuberay",
        what="`RayCluster`, `RayJob` (ray.io), AIBrix' `RayClusterFleet` and `RayClusterReplicaSet`, with a command that starts vLLM",
        reads=("headGroupSpec, workerGroupSpecs: template, replicas, numOfHosts", "entrypoint"),
        kinds=(
            "RayCluster.ray.io", "RayJob.ray.io", "RayClusterFleet.orchestration.aibrix.ai", "RayClusterReplicaSet.orchestration.aibrix.ai",
        ),
        supporting=_POD_SUPPORT,
        read=ray_serve.read_ray_cluster,
    ),
    Reader(
        platform="kubernetes",
        what="Pod, Deployment, StatefulSet, ReplicaSet, DaemonSet, Job, CronJob, `Rollout` (argoproj.io), `LeaderWorkerSet`",
        reads=(*_POD_FIELDS, "volumeClaimTemplates; leaderWorkerTemplate.size"),
        kinds=tuple(pod_engines.WORKLOADS),
        words=("llm-d", "vllm"),
        supporting=_POD_SUPPORT,
        bystanders=_BYSTANDERS,
        read=pod_engines.read_workload,
    ),
    *CHARTS,
    Reader(
        platform="llm-d-benchmark",
        what="scenarios of llm-d-benchmark (scenario, with common, standalone and modelservice), and its plans",
        reads=(
            "model: huggingfaceId, name, maxModelLen, gpuMemoryUtilization, maxNumSeq, maxNumBatchedTokens, blockSize",
            "accelerator, images.vllm",
            "standalone, decode, prefill: parallelism, acceleratorType, resources, vllm.customCommand, vllm.additionalFlags",
        ),
        recognises=lambda given: not given.document.kind and llm_d_benchmark.is_scenario(given.values),
        words=("llm-d", "vllm", "huggingfaceid"),
        supports=lambda given: llm_d_benchmark.has_no_engines(given.values),
        read=llm_d_benchmark.read_scenario,
    ),
    Reader(
        platform="ray-serve",
        what="Ray Serve configurations (applications with llm_configs, llm_config, prefill_config, decode_config)",
        reads=(
            "model_loading_config", "accelerator_type", "engine_kwargs", "placement_group_config", "runtime_env.pip (vllm==…)",
        ),
        recognises=lambda given: ray_serve.is_serve_config(given.root),
        words=_RAY_WORDS,
        read=ray_serve.read_serve_config,
    ),
    Reader(
        platform="ray-serve",
        what="a file with one LLM config of Ray Serve (model_loading_config)",
        reads=("as in a Ray Serve configuration",),
        recognises=lambda given: ray_serve.is_llm_config(given.root),
        words=_RAY_WORDS,
        read=ray_serve.read_llm_config,
    ),
    Reader(
        platform="skypilot",
        what="tasks of SkyPilot (resources, run)",
        reads=(
            "resources: accelerators, any_of, ordered, image_id", "envs, num_nodes", "run: the command of vLLM", "setup: vllm==…",
        ),
        recognises=lambda given: not given.document.kind and skypilot.is_task(given.root),
        read=skypilot.read_task,
    ),
    Reader(
        platform="dstack",
        what="services and tasks of dstack (type, commands)",
        reads=("image, commands, env, nodes", "resources.gpu: names, memory, number"),
        recognises=lambda given: not given.document.kind and dstack.is_configuration(given.root),
        read=dstack.read_configuration,
    ),
    Reader(
        platform="vllm-recipes",
        what="recipes of vLLM's own project (model.model_id, variants)",
        reads=(
            "model: model_id, base_args, docker_image", "features, opt_in_features", "variants: model_id, extra_args, tp, docker_image",
            "strategy_overrides: single_node_tp.tp",
        ),
        recognises=lambda given: not given.document.kind and vllm_recipes.is_recipe(given.root),
        read=vllm_recipes.read_recipe,
    ),
    Reader(
        platform=COMPOSE,
        what="services of docker-compose",
        reads=(
            "image, entrypoint, command, environment, gpus, deploy.resources.reservations.devices, shm_size, ipc",
            "`.env` beside the file, and what env_file and bind mounts name in its folder",
        ),
        recognises=compose.is_compose,
        read=compose.read_compose,
    ),
    Reader(
        platform="shell-script",
        what="shell scripts (`.sh`, `#!`), batch scripts of Slurm and Makefiles with `docker run`, `podman run`, `vllm serve` and the like",
        reads=(
            "options of the container: gpus, device, env, env-file, volume, mount, shm-size, ipc, memory, entrypoint, name",
            "variables, arrays and branches of the script; `#SBATCH`: gres, gpus",
        ),
        recognises=lambda given: launch_scripts.is_of(given, Form.SCRIPT, Form.MAKEFILE),
        supports=lambda given: given.document.form is not None,
        read=launch_scripts.read_script,
    ),
    Reader(
        platform="systemd",
        what="units of systemd (`.service`)",
        reads=("ExecStart, as in a script", "Environment, EnvironmentFile (beside the unit)"),
        recognises=lambda given: launch_scripts.is_of(given, Form.UNIT),
        read=launch_scripts.read_unit,
    ),
    Reader(
        platform="quadlet",
        what="quadlets of Podman (`.container`)",
        reads=("Image, Entrypoint, Exec, PodmanArgs, AddDevice", "Environment, EnvironmentFile, Volume, Mount, Tmpfs, ShmSize, Memory"),
        recognises=lambda given: launch_scripts.is_of(given, Form.QUADLET),
        read=launch_scripts.read_quadlet,
    ),
    *PASSED_ON,
    Reader(
        platform="(other kinds)",
        what="any other object with containers somewhere, in a list or by themselves, such as a `DisaggregatedSet` or a Knative `Service`",
        reads=_POD_FIELDS,
        kinds=("PodCliqueSet.grove.io", "PodCliqueScalingGroup.grove.io", "PodClique.grove.io"),
        recognises=_has_engines_in_containers,
        supporting=_POD_SUPPORT,
        read=pod_engines.read_object,
    ),
)  # fmt: skip
"""The first one that takes a document reads it."""
WITHOUT_ENGINES = ("CustomResourceDefinition.apiextensions.k8s.io",)
"""Kinds of objects that mention engines in descriptions only; they are not even built, because a repository may hold many MB of them."""
NOT_READ = ("NIMService.apps.nvidia.com", "NIMPipeline.apps.nvidia.com")
"""Kinds of objects that may run vLLM from an image that hides it; they are counted where no reader finds an engine."""
KEYS_OF_ENGINES = (
    "containers", "leaderworkertemplate", "services", "servingenginespec", "modelspec", "modelartifacts", "catalog", "llm_configs",
    "model_loading_config", "args", "arguments", "command", "cmd", "image", "flags", "options", "huggingfaceid", "script", "source", "run",
    "maxmodellen", "gpumemoryutilization", "resources",
)  # fmt: skip
"""Ends of names in small letters. An engine in JSON without a kind stands below one of them; other JSON is data of a program."""
_NO_MANIFESTS = (
    ("panels", "schemaVersion"), ("suite", "tests"), ("$schema", "properties"), ("$schema", "definitions"), ("$defs", "properties"),
    ("openapi", "paths"), ("swagger", "info"), ("scrape_configs",), ("site_name", "nav"),
)  # fmt: skip
"""Fields of files that hold no engine: dashboards of Grafana, tests of charts, schemas, APIs, settings of Prometheus, sites of pages."""


@cache
def readers() -> tuple[Reader, ...]:
    """Return the readers, with those of installed packages before the ones that take any values and any object with containers."""
    first_of_all = READERS.index(PASSED_ON[0])
    return (*READERS[:first_of_all], *installed_readers(), *READERS[first_of_all:])


def engines_in(given: ReaderInput) -> tuple[FoundEngine, ...]:
    """Return the engines of a document by the first reader that takes it; what the user states about values goes before all."""
    if not given.document.kind and (mapped := tuple(read_mapped_values(given))):
        return mapped
    reader = next((reader for reader in readers() if reader.takes(given)), None)
    return tuple(reader.read(given)) if reader else ()


def holds_no_engine(given: ReaderInput) -> bool:
    """Return whether a document stands beside engines and never holds one, so that it may name vLLM without a finding."""
    document, root = given.document, given.root
    # Knative has another Service, which holds containers
    if document.kind in supporting_kinds() | _bystanders() and not document.api_version.startswith(
        "serving.knative.dev/"
    ):
        return True
    if not document.kind and any(all(root.get(name).is_set for name in names) for names in _NO_MANIFESTS):
        return True
    return any(reader.supports(given) for reader in readers() if reader.supports)


def engine_words() -> tuple[str, ...]:
    """Words in small letters, of which a document with an engine has one, vLLM's or another."""
    of_all = (*(each.words for each in readers()), *(each.words for each in ENGINES))
    return tuple(dict.fromkeys(word for words in of_all for word in words))


@cache
def engine_marks() -> tuple[str, ...]:
    """Texts in small letters, of which manifests with an engine have one: vLLM's own name, or a platform's own kind or field.

    Names of platforms are none, because everything that belongs to a platform has them.
    """
    words = {"vllm", *_RAY_WORDS, *(word for reader in CHARTS for word in reader.words[:1])}
    kinds = (kind for reader in readers() if reader.is_in_cluster for kind in reader.kinds)
    own = (name_of_kind(kind) for kind in kinds if kind not in pod_engines.WORKLOADS)
    return (*sorted(words), *(f"kind: {name.lower()}\n" for name in own))


@cache
def supporting_kinds() -> frozenset[str]:
    """Kinds, without groups, of the objects that readers look up."""
    return frozenset(name_of_kind(kind) for reader in readers() for kind in reader.supporting)


@cache
def _bystanders() -> frozenset[str]:
    return frozenset().union(*(reader.bystanders for reader in readers()))


def resources_in_cluster() -> tuple[str, ...]:
    """Resources that may run vLLM, that stand between such an object and its pods, or that readers look up."""
    listed = [reader for reader in readers() if reader.is_in_cluster]
    own = [kind for reader in listed for kind in reader.kinds]
    supporting = [kind for reader in listed for kind in reader.supporting]
    return tuple(dict.fromkeys(map(resource_of_kind, own + supporting)))
