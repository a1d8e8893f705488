"""What `helm template` makes of a chart with one vLLM engine: five documents, for as many releases as are asked for."""

from collections.abc import Iterator
from string import Template

MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "microsoft/phi-4",
)
_PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H200")
DOCUMENTS_PER_RELEASE = 5

_LABELS = """\
  labels:
    helm.sh/chart: inference-1.4.2
    app.kubernetes.io/name: inference
    app.kubernetes.io/instance: engine-$number
    app.kubernetes.io/managed-by: Helm"""
_RELEASE = Template(f"""\
---
# Source: inference/templates/serviceaccount.yaml
apiVersion: v1
kind: ServiceAccount
metadata:
  name: engine-$number
  namespace: serving
{_LABELS}
automountServiceAccountToken: false
---
# Source: inference/templates/configmap.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: engine-$number-chat-template
  namespace: serving
{_LABELS}
data:
  chat_template.jinja: |
    {{%- for message in messages %}}
    <|im_start|>{{{{ message.role }}}}
    {{{{ message.content }}}}<|im_end|>
    {{%- endfor %}}
    <|im_start|>assistant
  LOG_LEVEL: "info"
---
# Source: inference/templates/service.yaml
apiVersion: v1
kind: Service
metadata:
  name: engine-$number
  namespace: serving
{_LABELS}
spec:
  type: ClusterIP
  ports:
    - name: http
      port: 80
      targetPort: http
      protocol: TCP
  selector:
    app.kubernetes.io/name: inference
    app.kubernetes.io/instance: engine-$number
---
# Source: inference/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: engine-$number
  namespace: serving
{_LABELS}
spec:
  replicas: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: inference
      app.kubernetes.io/instance: engine-$number
  template:
    metadata:
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8000"
      labels:
        app.kubernetes.io/name: inference
        app.kubernetes.io/instance: engine-$number
    spec:
      serviceAccountName: engine-$number
      securityContext:
        runAsNonRoot: true
        fsGroup: 2000
      nodeSelector:
        nvidia.com/gpu.product: $product
      tolerations:
        - key: nvidia.com/gpu
          operator: Exists
          effect: NoSchedule
      containers:
        - name: engine
          image: vllm/vllm-openai:v0.11.0
          imagePullPolicy: IfNotPresent
          command: ["vllm", "serve"]
          args:
            - $model
            - --max-model-len=$max_model_len
            - --max-num-seqs=$max_num_seqs
            - --tensor-parallel-size=$gpus
            - --gpu-memory-utilization=0.9
            - --chat-template=/templates/chat_template.jinja
          env:
            - name: HF_HOME
              value: /models
            - name: HF_TOKEN
              valueFrom:
                secretKeyRef:
                  name: hf-token
                  key: token
          ports:
            - name: http
              containerPort: 8000
              protocol: TCP
          startupProbe:
            httpGet:
              path: /health
              port: http
            failureThreshold: 120
            periodSeconds: 10
          readinessProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 5
          resources:
            requests:
              cpu: "8"
              memory: 64Gi
              nvidia.com/gpu: "$gpus"
            limits:
              nvidia.com/gpu: "$gpus"
          volumeMounts:
            - name: templates
              mountPath: /templates
            - name: models
              mountPath: /models
            - name: shm
              mountPath: /dev/shm
      volumes:
        - name: templates
          configMap:
            name: engine-$number-chat-template
        - name: models
          emptyDir: {{}}
        - name: shm
          emptyDir:
            medium: Memory
            sizeLimit: 16Gi
---
# Source: inference/templates/hpa.yaml
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: engine-$number
  namespace: serving
{_LABELS}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: engine-$number
  minReplicas: 1
  maxReplicas: 4
  metrics:
    - type: Pods
      pods:
        metric:
          name: num_requests_waiting
        target:
          type: AverageValue
          averageValue: "5"
""")
_DEFINITION = """\
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets-{number}.example.com
spec:
  group: example.com
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
          properties:
"""
_PROPERTY = """\
            field{number}:
              description: |-
                Number {number} of the fields that somebody described at length, as definitions of operators
                do; nothing in it is about an engine.
              type: string
"""


def release(number: int) -> str:
    """The five documents of one release; no two have the same engine."""
    return _RELEASE.substitute(
        number=number,
        model=MODELS[number % len(MODELS)],
        product=_PRODUCTS[number % len(_PRODUCTS)],
        max_model_len=4096 + 16 * number,
        max_num_seqs=1 + number % 32,
        gpus=1 + number % 2,
    )


def bundle(size_bytes: int, releases: int) -> Iterator[str]:
    """A stream of at least this size, piece by piece: the releases, then definitions of 100 KB that no engine is in."""
    written, number = 0, 0
    while written < size_bytes:
        text = release(number) if number < releases else definition(number)
        written += len(text)
        number += 1
        yield text


def definition(number: int) -> str:
    """A CustomResourceDefinition as operators ship them."""
    return _DEFINITION.format(number=number) + "".join(_PROPERTY.format(number=field) for field in range(430))
