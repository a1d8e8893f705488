"""Settings of vLLM that take memory of the host, and the memory that a pod has; nothing of either is on a GPU."""

from msgspec import Struct


class KVConnector(Struct, frozen=True, kw_only=True):
    """One connector of `--kv-transfer-config` (vLLM 0.33, `KVTransferConfig`); a MultiConnector is several of them."""

    name: str
    """vLLM's name: `OffloadingConnector`, `LMCacheConnectorV1`, `NixlConnector` …"""
    role: str = ""
    """`kv_producer`, `kv_consumer` or `kv_both`."""
    cpu_bytes: int | None = None
    """Host memory of all ranks of an engine together (`cpu_bytes_to_use`); None: as its own settings say."""
    cpu_bytes_per_rank: int | None = None
    """Host memory of each rank (`cpu_bytes_to_use_per_rank`, `lmcache.max_local_cpu_size`)."""
    cpu_blocks: int | None = None
    """Blocks in host memory (`num_cpu_blocks`, 0.11 to 0.13); a block is one of the KV cache."""
    is_plug_in: bool = False
    """True where its class is somebody else's (`kv_connector_module_path`)."""
    has_tiers: bool = False
    """True where more tiers lie behind the one in host memory (`TieringOffloadingSpec`), which all processes share on any GPU."""
    buffer_on_host: bool = False
    """True where KV caches pass through host memory (`kv_buffer_device: cpu`)."""


class HostSettings(Struct, frozen=True, kw_only=True):
    """Arguments of vLLM that take memory of the host; None means that vLLM decides."""

    kv_offloading_bytes: int | None = None
    """KV cache in host memory, of all ranks of an engine together (`--kv-offloading-size`, 0.12+)."""
    kv_offloading_backend: str = "native"
    """`native` or `lmcache`."""
    simple_kv_offload: bool = False
    """True where ranks keep offloaded blocks to themselves and not in /dev/shm (`VLLM_USE_SIMPLE_KV_OFFLOAD`, 0.19+)."""
    kv_connectors: tuple[KVConnector, ...] = ()
    """Connectors of `--kv-transfer-config`."""
    kv_events: bool = False
    """True where the engine publishes what its KV cache holds (`--kv-events-config`)."""
    lmcache_bytes: int | None = None
    """Host memory of each rank that LMCache's own setting gives (`LMCACHE_MAX_LOCAL_CPU_SIZE`, or its file)."""
    swap_space_bytes: int | None = None
    """Blocks of each GPU that V0 may swap out; releases up to 0.17 have the option, and V1 leaves it unused."""
    sleep_mode: bool = False
    """True where weights may wait in host memory while the engine sleeps (`--enable-sleep-mode`)."""
    cumem_allocator: bool = False
    """True where the KV cache has memory that stays where it is (`--enable-cumem-allocator`); sleep mode switches it on as well."""
    mm_processor_cache_bytes: int | None = None
    """Images, sounds and videos that were prepared, per process that keeps them (`--mm-processor-cache-gb`, 0.10.2+)."""
    mm_processor_cache_type: str = "lru"
    """`lru`, or `shm` in /dev/shm (0.11+)."""
    api_server_count: int | None = None
    """Processes that take requests, prepare images and find tokens."""
    data_parallel_size_local: int | None = None
    """Engines of this pod; None: all of the engine's data parallel ranks."""
    distributed_executor_backend: str | None = None
    """`mp`, `ray`, `uni`, `external_launcher`; None: `mp` where there are several ranks."""
    load_format: str = "auto"
    safetensors_load_strategy: str | None = None
    """`lazy`, `eager`, `prefetch`, `torchao`; None: files are mapped."""
    shm_tensor_arena: bool = False
    """True where large inputs pass through a segment of /dev/shm (`--enable-shm-tensor-arena`, 0.32+)."""


NO_HOST_SETTINGS = HostSettings()


class PodMemory(Struct, frozen=True, kw_only=True):
    """Memory of the host that a pod has; None where it is not known, and then nothing is refused for it."""

    limit_bytes: int | None = None
    """Memory limit of the container."""
    added_bytes: int = 0
    """Bytes that kvgate adds to that limit when it renders the pod, for /dev/shm."""
    shm_bytes: int | None = None
    """Size of /dev/shm; its pages count against the limit of the container too."""
    is_shm_certain: bool = True
    """False where the size is a default that somebody outside the manifest may have changed."""
    node_bytes: int | None = None
    """Memory of the node."""
    num_pods: int = 1
    """Pods that one engine spans."""
    num_gpus: int | None = None
    """GPUs of one pod, where that is known."""


UNKNOWN_POD = PodMemory()
