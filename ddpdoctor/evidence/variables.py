"""The one table of environment variables that may be kept, and over what each has to agree.

Nothing outside this table ever enters evidence. Checks read it to know whether a difference matters;
gatherers read it to know what to take.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

WORLD = "world"
"""The value must be the same on every rank of the job."""
NODE = "node"
"""The value must be the same on every rank of one node; nodes may differ."""
RANK = "rank"
"""The value differs from rank to rank by its nature."""
FREE = "free"
"""A difference says nothing about whether the job works."""

AGREEMENTS = (WORLD, NODE, RANK, FREE)


@dataclass(frozen=True, slots=True)
class VariableRule:
    """One row of the table."""

    pattern: str
    """An exact name, or a prefix that ends in ``*``."""
    agreement: str
    """One of `AGREEMENTS`."""
    family: str
    """Heading in a report: torch, launcher, nccl, gloo, cuda, threads, fabric, framework."""


_NAMES: dict[tuple[str, str], str] = {
    # What torch.distributed and torchrun read and set: docs.pytorch.org/docs/stable/elastic/run.html,
    # section "Environment Variables".
    ("torch", WORLD): (
        "WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME NNODES "
        "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
        "TORCHELASTIC_USE_AGENT_STORE TORCH_* TORCHELASTIC_* USE_LIBUV PYTHONHASHSEED"
    ),
    ("torch", NODE): "LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK TP_SOCKET_IFNAME",
    ("torch", RANK): "RANK LOCAL_RANK ROLE_RANK TORCHELASTIC_ERROR_FILE",
    # Logging, caches and dumps: they change what is written, not what is computed or exchanged.
    ("torch", FREE): (
        "TORCH_LOGS TORCH_LOGS_OUT TORCH_TRACE TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_HOME "
        "TORCH_EXTENSIONS_DIR TORCH_CUDA_ARCH_LIST TORCH_USE_CUDA_DSA TORCH_FR_* TORCH_NCCL_DEBUG_INFO_* "
        "TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_COMPILE_* TORCHELASTIC_SIGNALS_TO_HANDLE "
        "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_HEALTH_CHECK_PORT PYTORCH_ALLOC_CONF "
        "PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NVML_BASED_CUDA_CHECK PYTHONUNBUFFERED "
        "PYTHONFAULTHANDLER PYTHONDONTWRITEBYTECODE"
    ),
    # docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. Interface and adapter names belong to a
    # machine; everything else tunes an algorithm that all ranks must run alike.
    ("nccl", WORLD): "NCCL_* RCCL_* NVTE_*",
    ("nccl", NODE): (
        "NCCL_SOCKET_IFNAME NCCL_OOB_NET_IFNAME NCCL_IB_HCA NCCL_HOSTID NCCL_TOPO_FILE NCCL_NET_GDR_LEVEL "
        "NCCL_IB_GID_INDEX NCCL_RAS_ADDR NCCL_COMM_ID"
    ),
    ("nccl", FREE): "NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE",
    ("gloo", WORLD): "GLOO_*",
    ("gloo", NODE): "GLOO_SOCKET_IFNAME",
    (
        "fabric",
        WORLD,
    ): "UCX_* UCC_* FI_PROVIDER FI_EFA_* CCL_* HSA_FORCE_FINE_GRAIN_PCIE HSA_OVERRIDE_GFX_VERSION",
    ("fabric", NODE): "UCX_NET_DEVICES FI_OPX_* CCL_KVS_IFACE",
    ("fabric", FREE): "UCX_LOG_LEVEL UCC_LOG_LEVEL FI_LOG_LEVEL CCL_LOG_LEVEL",
    ("cuda", WORLD): (
        "CUDA_LAUNCH_BLOCKING CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUBLAS_WORKSPACE_CONFIG "
        "NVIDIA_TF32_OVERRIDE HIP_LAUNCH_BLOCKING AMD_SERIALIZE_KERNEL CUDA_MODULE_LOADING"
    ),
    ("cuda", NODE): "NVIDIA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    (
        "cuda",
        RANK,
    ): "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL",
    # libgomp, Intel OpenMP, MKL and OpenBLAS; a difference costs speed only, which ENV011 judges.
    ("threads", FREE): (
        "OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY MKL_NUM_THREADS MKL_DYNAMIC "
        "MKL_THREADING_LAYER KMP_AFFINITY KMP_BLOCKTIME GOMP_CPU_AFFINITY OPENBLAS_NUM_THREADS "
        "NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS"
    ),
    # slurm.schedmd.com/srun.html and sbatch.html, "OUTPUT ENVIRONMENT VARIABLES", without accounts, user
    # names, directories and host addresses of the submitter.
    ("launcher", WORLD): (
        "SLURM_JOB_ID SLURM_JOBID SLURM_STEP_ID SLURM_STEPID SLURM_NTASKS SLURM_NPROCS SLURM_NNODES "
        "SLURM_JOB_NUM_NODES SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_GPU SLURM_TASKS_PER_NODE "
        "SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES SLURM_STEP_TASKS_PER_NODE SLURM_STEP_NODELIST "
        "SLURM_JOB_NODELIST SLURM_NODELIST SLURM_CPUS_PER_TASK SLURM_GPUS SLURM_GPUS_PER_NODE "
        "SLURM_GPUS_PER_TASK SLURM_GPUS_ON_NODE SLURM_RESTART_COUNT SLURM_DISTRIBUTION SLURM_CPU_BIND_TYPE "
        "SLURM_MPI_TYPE OMPI_COMM_WORLD_SIZE OMPI_UNIVERSE_SIZE OMPI_MCA_btl* OMPI_MCA_pml* OMPI_MCA_coll* "
        "OMPI_MCA_oob_tcp_* PMI_SIZE PMI_UNIVERSE_SIZE PMIX_NAMESPACE MV2_COMM_WORLD_SIZE I_MPI_FABRICS "
        "I_MPI_OFI_* I_MPI_ADJUST_* PALS_APID PET_* KUBERNETES_SERVICE_PORT JOB_COMPLETION_TOTAL"
    ),
    ("launcher", NODE): (
        "SLURM_NODEID SLURMD_NODENAME SLURM_JOB_GPUS SLURM_CPUS_ON_NODE SLURM_GTIDS SLURM_PTY_PORT "
        "OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS MV2_COMM_WORLD_LOCAL_SIZE PALS_NODEID PALS_LOCAL_SIZE "
        "PET_NODE_RANK PET_NPROC_PER_NODE PET_LOCAL_ADDR PET_LOG_DIR JOB_COMPLETION_INDEX"
    ),
    ("launcher", RANK): (
        "SLURM_PROCID SLURM_LOCALID SLURM_STEP_GPUS SLURM_CPU_BIND SLURM_CPU_BIND_LIST OMPI_COMM_WORLD_RANK "
        "OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_NODE_RANK PMI_RANK PMI_ID PMIX_RANK MPI_LOCALRANKID "
        "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK PALS_RANKID PALS_LOCAL_RANKID"
    ),
    ("launcher", FREE): (
        "KUBERNETES_SERVICE_HOST I_MPI_DEBUG I_MPI_PIN I_MPI_PIN_DOMAIN I_MPI_HYDRA_BOOTSTRAP "
        "LD_LIBRARY_PATH LD_PRELOAD"
    ),
    ("framework", WORLD): (
        "ACCELERATE_* FSDP_* DEEPSPEED_* PL_GLOBAL_SEED PL_TORCH_DISTRIBUTED_BACKEND XLA_FLAGS "
        "HF_HUB_OFFLINE TOKENIZERS_PARALLELISM"
    ),
}

_TABLE: tuple[VariableRule, ...] = tuple(
    VariableRule(name, agreement, family)
    for (family, agreement), names in _NAMES.items()
    for name in names.split()
)

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASS|PASSWD|PASSWORD|KEY|KEYS|CREDENTIALS?|AUTH|COOKIE)(?:_|$)"
)
"""Names that a prefix of the table would let in and that may hold a secret, e.g. ``ACCELERATE_API_KEY``.

``NCCL_IB_PKEY`` (a partition number) is no match: the word must stand alone.
"""

_EXACT = {rule.pattern: rule for rule in _TABLE if not rule.pattern.endswith("*")}
_PREFIXES = sorted(
    (rule for rule in _TABLE if rule.pattern.endswith("*")), key=lambda rule: -len(rule.pattern)
)


def all_rules() -> tuple[VariableRule, ...]:
    """Return the whole table."""
    return _TABLE


@functools.lru_cache(maxsize=4096)
def find_rule(name: str) -> VariableRule | None:
    """Return the row that lets ``name`` in; None when the variable must not be kept.

    An exact name goes before a prefix, a longer prefix before a shorter one.
    """
    if name in _EXACT:
        return _EXACT[name]
    if _SECRET_NAME.search(name):
        return None
    return next((rule for rule in _PREFIXES if name.startswith(rule.pattern[:-1])), None)


def agreement(name: str) -> str | None:
    """Return over what ``name`` has to agree (one of `AGREEMENTS`), None for a variable not in the table."""
    rule = find_rule(name)
    return rule.agreement if rule else None
