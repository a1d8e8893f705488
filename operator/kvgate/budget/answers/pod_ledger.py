"""The ledger of the host for a budget: what the ledger of the GPU knows about the model, and the question that follows from it."""

from kvgate.budget.answers.answer import Budget
from kvgate.budget.engine.request import EngineSettings
from kvgate.budget.engine.settings import runs_on_v2
from kvgate.budget.ground.interval import Interval
from kvgate.budget.host.memory import HostLedger, host_ledger
from kvgate.budget.host.processes import HostQuestion, ModelOnHost
from kvgate.budget.host.settings import PodMemory
from kvgate.budget.releases.versions import accounting_of, parse_release


def pod_ledger(budget: Budget) -> HostLedger:
    """Sum up the ranks of all stages. A model that is assumed by its name is counted like the one that it is assumed to be."""
    request, resolved = budget.request, budget.resolved
    cut, shape = request.settings.parallelism, request.shape
    ranks = cut.num_gpus // cut.pipeline
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger]
    block_bytes = sum(stage.bytes_per_block for stage in budget.stages) * ranks
    weights_bytes = sum(ledger.weights.expected for ledger in ledgers) * ranks
    model = ModelOnHost(
        kept_bytes=sum((ledger.host_bytes for ledger in ledgers), Interval.exactly(0)).times(ranks),
        weights_bytes=weights_bytes,
        checkpoint_bytes=shape.checkpoint_bytes or weights_bytes // cut.data,
        cache_bytes=budget.num_blocks.expected * block_bytes if budget.num_blocks and ledgers else 0,
        block_bytes=block_bytes,
        token_ids_bytes=4 * resolved.max_num_seqs * resolved.max_model_len
        if runs_on_v2(shape, budget.accounting, request.circumstances, request.accelerator.vendor)
        else 0,
        takes_media=any(request.settings.takes(item.modality) for encoder in shape.encoders for item in encoder.items),
    )
    return host_ledger(
        HostQuestion(
            settings=request.settings.host,
            parallelism=cut,
            release=parse_release(request.vllm_version),
            offloaded_weights_bytes=request.settings.offload.cpu_bytes,
            pod=request.pod,
            vendor=request.accelerator.vendor,
            runs_v0=not budget.accounting.v1_engine,
            model=model,
        )
    )


def pod_ledger_without_model(
    settings: EngineSettings, vllm_version: str, pod: PodMemory, *, vendor: str = "nvidia"
) -> HostLedger:
    """Return what is known about a pod from the settings alone. Raises UnknownVersion."""
    return host_ledger(
        HostQuestion(
            settings=settings.host,
            parallelism=settings.parallelism,
            release=parse_release(vllm_version),
            offloaded_weights_bytes=settings.offload.cpu_bytes,
            pod=pod,
            vendor=vendor,
            runs_v0=not accounting_of(vllm_version).v1_engine,
        )
    )
