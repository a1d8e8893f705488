"""Examples in the help of each command; a test runs all of them in a folder with the files that they name."""

from collections.abc import Mapping

Example = tuple[str, str]
"""(what it is for, the command line)."""

_QWEN = "--model Qwen/Qwen3-32B-FP8"
_LOAD = "--prompt-tokens 6k --output-tokens 500"

EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "check": (
        ("Judge every engine below a folder.", "kvgate check deploy/"),
        ("Judge a rendered chart.", "helm template charts/vllm | kvgate check -"),
        (
            "Judge for a GPU that the manifests do not name, and write a report for code scanning beside the text.",
            "kvgate check deploy/ --gpu H100-SXM-80GB -o text -o sarif=kvgate.sarif",
        ),
    ),
    "diff": (
        ("Show what a change of a folder does to each engine.", "kvgate diff deploy/ changed/"),
        ("Write what a branch changes for its pull request.", "kvgate diff main...HEAD -o markdown"),
        ("Compare a revision with the files on disk.", "kvgate diff v1.2 deploy/"),
    ),
    "explain": (
        ("Show where the memory of a GPU goes.", "kvgate explain --model Qwen/Qwen3-8B --gpu L4 --max-model-len 16k"),
        ("Show it for an engine of a manifest.", "kvgate explain deploy/fits.yaml#llama-3-1-8b"),
        ("Show one figure with its formula.", "kvgate explain --model Qwen/Qwen3-8B --gpu L4 --why weights"),
        ("Answer many questions, one JSON object a line.", "kvgate explain --requests questions.jsonl"),
    ),
    "size": (
        (
            "Find the cheapest GPUs for 64 requests at the same time.",
            f"kvgate size {_QWEN} {_LOAD} --peak-concurrency 64",
        ),
        ("Ask how many requests eight GPUs hold.", f"kvgate size {_QWEN} {_LOAD} --gpus 8xH100-SXM-80GB"),
        (
            "Write the manifest of the second row.",
            f"kvgate size {_QWEN} {_LOAD} --gpus H100-SXM-80GB,H200 --peak-concurrency 64 --choose 2 -o yaml",
        ),
    ),
    "sweep": (
        ("Show how many requests of which length fit.", f"kvgate sweep {_QWEN} --gpu H100-SXM-80GB"),
        (
            "Draw context by concurrency.",
            f"kvgate sweep {_QWEN} --gpu H100-SXM-80GB --x max_model_len=4K..40K+4K --y max_num_seqs=1..16 --file sweep.svg",
        ),
        (
            "Compare GPUs and parallel sizes, and end with the verdict of one point.",
            f"kvgate sweep {_QWEN} --max-num-seqs 8 --x gpu=L40S,H200 --y tensor_parallel_size=1..4 --at H200,2",
        ),
    ),
    "calibrate": (
        ("Show what a start left for the KV cache.", "kvgate calibrate start.log --gpu H100-SXM-80GB"),
        ("Remember it for the next verdict.", "kvgate calibrate start.log --gpu H100-SXM-80GB --into observed.jsonl"),
        ("Show what was learnt, and why.", "kvgate calibrate show calibration.jsonl"),
    ),
    "calibrate logs": (
        ("Show what a start left.", "kvgate calibrate logs start.log --gpu H100-SXM-80GB"),
        ("Remember all starts of a folder.", "kvgate calibrate logs *.log --gpu H100-SXM-80GB --into observed.jsonl"),
        ("Say what a log does not hold.", "kvgate calibrate logs start.log --gpu H100-SXM-80GB --vllm-version 0.19.0"),
    ),
    "calibrate show": (
        ("Show what was learnt, and why.", "kvgate calibrate show calibration.jsonl"),
        ("Show it for a program.", "kvgate calibrate show calibration.jsonl -o json"),
        ("Show what another command writes.", "cat calibration.jsonl | kvgate calibrate show -"),
    ),
    "calibrate pin": (
        ("Let predictions follow a start.", "kvgate calibrate pin 1 --file calibration.jsonl"),
        (
            "Let them, and show what that does to a prediction.",
            "kvgate calibrate pin 1 --file calibration.jsonl && kvgate calibrate show calibration.jsonl",
        ),
        ("Let it count like any other again.", "kvgate calibrate pin 1 --undo --file calibration.jsonl"),
    ),
    "calibrate drop": (
        ("Let a start count for nothing.", "kvgate calibrate drop 1 --file calibration.jsonl"),
        (
            "Drop it, and show what that does to a prediction.",
            "kvgate calibrate drop 1 --file calibration.jsonl && kvgate calibrate show calibration.jsonl",
        ),
        ("Let it count again.", "kvgate calibrate drop 1 --undo --file calibration.jsonl"),
    ),
    "calibrate freeze": (
        ("Learn nothing new.", "kvgate calibrate freeze '*' --file calibration.jsonl"),
        ("Learn nothing new of a namespace.", "kvgate calibrate freeze serving --file calibration.jsonl"),
        ("Or of one setting in it.", "kvgate calibrate freeze serving/0123456789 --file calibration.jsonl"),
    ),
    "calibrate thaw": (
        ("Learn again.", "kvgate calibrate thaw '*' --file calibration.jsonl"),
        ("Learn of a namespace again.", "kvgate calibrate thaw serving --file calibration.jsonl"),
        ("Or of one setting in it.", "kvgate calibrate thaw serving/0123456789 --file calibration.jsonl"),
    ),
    "gpus": (
        ("List the GPUs with a word in their names.", "kvgate gpus h100"),
        ("List the slices of GPUs.", "kvgate gpus mig"),
        ("List all of them for a program.", "kvgate gpus -o json"),
    ),
    "models": (
        ("List the models with a word in their names.", "kvgate models qwen3-32b"),
        ("List them for a program.", "kvgate models list qwen3-32b -o json"),
        ("Read a checkpoint in a folder.", "kvgate models fetch ./my-model"),
    ),
    "models list": (
        ("List the models with a word in their names.", "kvgate models list llama-3.1"),
        ("List those of a publisher.", "kvgate models list mistralai/"),
        ("List all of them for a program.", "kvgate models list -o json"),
    ),
    "models fetch": (
        ("Show what a checkpoint in a folder holds.", "kvgate models fetch ./my-model"),
        ("Keep it in a lock file.", "kvgate models fetch ./my-model --into kvgate-models.json"),
        (
            "Keep it under the name that manifests give it.",
            "kvgate models fetch ./my-model --as /models/mine --into kvgate-models.json",
        ),
    ),
    "models lock": (
        ("Keep the models of a folder of manifests.", "kvgate models lock charts/"),
        ("Fail where the committed file is not complete.", "kvgate models lock deploy/ --check"),
        ("Keep models that the catalogue knows, too.", "kvgate models lock charts/ --all -o all-models.json"),
    ),
    "why": (
        ("Say what the log of a pod shows.", "kvgate why start.log"),
        ("Say it for a command.", "kvgate why 'vllm serve Qwen/Qwen3-32B --max-model-len 32k' --gpu L4"),
        ("Say it for a manifest and the log of its pod.", "kvgate why deploy/fits.yaml start.log"),
    ),
    "rules": (
        ("List the rules about a subject.", "kvgate rules memory"),
        ("Show one with its page.", "kvgate rules LoraNotEnabled"),
        ("List all of them for a program.", "kvgate rules -o json"),
    ),
}
"""Path of the command → its examples."""
