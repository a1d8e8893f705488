#!/bin/bash
# Shape and facts: github.com/phatvo9/benchmark_gpu, server/vllm.sh (parameters, --env, --ipc, --shm-size), and
# github.com/zeuscsc/OpenReinforcedAgent, start_vllm.sh (--gpus='"device=0"', a model in the working folder). Written anew.
# check: --accelerator L4-24GB
set -euo pipefail
MODEL=${1:-Qwen/Qwen3-8B}
PORT=23333

docker rm -f chat 2>/dev/null || true
docker run -d --runtime nvidia --gpus '"device=0,1"' \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" -e NCCL_P2P_DISABLE=1 \
    -p $PORT:$PORT --shm-size=1g --ulimit memlock=-1 --name chat \
    vllm/vllm-openai:v0.9.2 --model $MODEL --port $PORT \
    --max-model-len 16000 --gpu-memory-utilization 0.9

docker run -itd --gpus=device=0 --ipc=host -v $(pwd):/workspace --name $2 \
    vllm/vllm-openai:v0.7.2 --model /workspace/models/$2 --max_model_len 2048

echo "Started: docker run --gpus all vllm/vllm-openai --model $MODEL"
