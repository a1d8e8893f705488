#!/usr/bin/env bash
# Shape and facts: github.com/infinityreader/RARE, scripts/deploy_llama31_70b.sh (exported variables, two GPUs),
# github.com/Hashimmalik688/final-expense-voice-bot, scripts/start_vllm.sh (weights in a folder, the name that they are served as), and
# github.com/michelgirault/ai-server, vllm-opt/starter.sh (every value is a variable of the container). Written anew.
# check: --accelerator H100-SXM-80GB
source /venv/main/bin/activate
export CUDA_VISIBLE_DEVICES=2,3
export VLLM_WORKER_MULTIPROC_METHOD=spawn

if [ "$ROLE" = small ]; then
  exec python -m vllm.entrypoints.openai.api_server --model /workspace/models/llama \
    --served-model-name meta-llama/Llama-3.1-8B-Instruct --max-model-len 2048 --max-num-seqs 32 --enforce-eager
elif [ "$ROLE" = large ]; then
  nohup python3 -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-70B-Instruct \
    --tensor-parallel-size 4 --max-model-len 32000 > vllm.log 2>&1 &
else
  vllm serve "$LLM_MODEL_ID" --dtype $DTYPE --max-model-len $MODEL_LEN "$@"
fi
