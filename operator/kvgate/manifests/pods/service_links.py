"""Variables that Kubernetes sets in a pod for the Services of its namespace, and that vLLM takes for its own.

The kubelet makes them each time that it creates a container, after the image was pulled, so that a Service which is applied together with
the pod is there in time, whichever stands first (kubelet_pods.go, `makeEnvironmentVariables`). A Service without an address of its own sets
none, and what `env` and `envFrom` of the container say wins.
"""

from collections.abc import Iterator, Mapping

from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located, Place, Severity, any_one, located
from kvgate.manifests.pods.engine_found import ReaderInput
from kvgate.rules.manifests import SERVICE_LINK
from kvgate.vllm.variables import PORTS

_WITHOUT_LINKS = frozenset({"Service", "InferenceService", "ServingRuntime", "ClusterServingRuntime"})
"""Kinds of Knative, and of KServe on it, which sets `enableServiceLinks: false` where nothing else is said (config-defaults), and of
LLMKube, which does so for vLLM (deployment_builder.go, `resolveEnableServiceLinks`)."""


def service_links(
    given: ReaderInput, pod: Written, container: Written, variables: Mapping[str, Written], labels: Written | None
) -> Iterator[Located]:
    """Yield a finding for each Service beside the pod that sets a variable which vLLM reads as a number.

    `labels`: the pod's own; None where it may not be as it is written.
    """
    # a placeholder may switch the links off
    has_links = pod.get("enableServiceLinks").value in (None, True)
    if not given.document.kind or given.document.kind in _WITHOUT_LINKS or not has_links:
        return
    script = str([container.get(field).value for field in ("command", "args")])
    is_seen = all(
        given.config_data(source.get("configMapRef", "name").text) for source in container.get("envFrom").items()
    )
    for name, when in PORTS.items():
        wanted = name.removesuffix("_PORT").lower().replace("_", "-")
        service, is_in_file = given.find_service(wanted) or (NOTHING, False)
        spec = service.get("spec")
        # every Service has an address in the cluster that is neither headless nor a name outside of it
        has_address = spec.is_set and spec.get("clusterIP").text != "None" and spec.get("type").text != "ExternalName"
        if not has_address or name in variables or name in script:
            continue
        selector = [(key, value.text) for key, value in service.get("spec", "selector").fields()]
        selects = labels is not None and bool(selector) and all(labels.get(key).text == text for key, text in selector)
        belongs = selects or (labels is not None and is_in_file)
        is_certain = belongs and is_seen and not when
        message = (
            f"the Service {wanted} makes Kubernetes set {name}=tcp://… in the pod, which vLLM reads as a number"
            f"{f' {when}' if when else ''}; it {'does' if is_certain else 'may'} not start"
        )
        remedy = any_one("set enableServiceLinks: false in the spec of the pod", "give the Service another name")
        severity = Severity.ERROR if is_certain else Severity.WARNING
        yield located(SERVICE_LINK, Place(name="env", path=container.path), message, remedy, severity=severity)
