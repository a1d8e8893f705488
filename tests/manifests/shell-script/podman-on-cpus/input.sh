# Shape and facts: github.com/dbrugger946/rh-ibm-ai-various, vllm-dev/run-vllm-container.sh (vLLM on CPUs), and Podman's --device with a
# name of the Container Device Interface, as public scripts of a DGX Spark have it. Written anew.
podman run --rm \
    --privileged=true \
    --shm-size=4g \
    -p 8000:8000 \
    -e VLLM_CPU_KVCACHE_SPACE=30  \
    vllm-cpu-env:latest \
    --model=ibm-granite/granite-3.2-2b-instruct \
    --dtype=bfloat16

sudo podman run -d --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 --security-opt=label=disable \
    docker.io/vllm/vllm-openai:v0.11.0 Qwen/Qwen3-14B --tensor-parallel-size 4
