"""The table of texts: what torch, gloo, NCCL, CUDA, Python, the kernel and launchers print when a job fails.

Pure data, in order of precedence: where several entries know one text, the first cause wins, so narrow ones
stand before wide ones. Wordings were read from the sources and libraries of torch 2.4 to 2.13 or produced with
torch 2.13.0, those of NCCL and CUDA from NCCL's sources and public logs. A pattern is searched within one line
and has only bounded repetitions over classes that cannot match what follows them, so that no text makes it slow.
"""

from __future__ import annotations

from dataclasses import dataclass

CAUSE = "cause"
"""The process that says it is at fault, or has lost what it needs itself."""
CONSEQUENCE = "consequence"
"""The process that says it lost another one, or was told to end."""
NOISE = "noise"
"""Harmless; users take it for the cause."""


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One text that is known."""

    id: str
    pattern: str
    """Regular expression, searched in a line; its named groups are kept."""
    anchor: str
    """Literal that every text of this entry contains: the quick test before the pattern."""
    role: str
    """One of `CAUSE`, `CONSEQUENCE`, `NOISE`."""
    code: str | None
    """Code of the catalogue that the text speaks for; None where it settles none."""
    rows: str
    """Rows of the list of failure modes that it comes from, e.g. ``L01 L17``."""
    example: str
    """A real text."""
    gates: tuple[str, ...] = ()
    """Literals of which every text holds at least one, where the anchor has no rare letter to search for."""
    unless: str | None = None
    """Regular expression; where it is found in the same line the entry does not match."""
    condition: str | None = None
    """Under which other evidence the text must not be taken for its code; the judge sees to it."""


def _entry(
    id: str,
    role: str,
    code: str | None,
    rows: str,
    anchor: str,
    pattern: str,
    example: str,
    *,
    gates: tuple[str, ...] = (),
    unless: str | None = None,
    condition: str | None = None,
) -> TextEntry:
    return TextEntry(id, pattern, anchor, role, code, rows, example, gates, unless, condition)


_GLOO = r"gloo/[\w./-]{1,80}:\d{1,5}\]"
_SHARED = "No space left on device"

# fmt: off
_NETWORK = (
    _entry(
        "port-taken", CAUSE, "NET001", "L01 L17", "The server socket has failed to",
        r"The server socket has failed to (?:bind|listen)\b.{0,200}?(?:port: |\]:|[\w.]:)(?P<port>\d{1,5})\b.{0,120}?"
        r"(?:EADDRINUSE|[Aa]ddress already in use)",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    _entry(
        "port-denied", CAUSE, "NET009", "L03", "The server socket has failed to",
        r"The server socket has failed to (?:bind|listen)\b.{0,200}?(?:port: |\]:|[\w.]:)(?P<port>\d{1,5})\b.{0,120}?"
        r"(?:EACCES|[Pp]ermission denied)",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 22, useIpv6: false, code: -13, name: EACCES, message: permission denied",
    ),
    _entry(
        "port-taken-unnamed", CAUSE, "NET001", "L01 L17", "The server socket has failed to listen",  # torch <= 2.4
        r"The server socket has failed to listen on any local network address\. useIpv6: \w{1,5}, code: -\d{1,4}, "
        r"name: EADDRINUSE",
        "RuntimeError: The server socket has failed to listen on any local network address. useIpv6: 0, code: -98, "
        "name: EADDRINUSE, message: address already in use",
    ),
    _entry(
        "port-denied-unnamed", CAUSE, "NET009", "L03", "The server socket has failed to listen",  # likewise
        r"The server socket has failed to listen on any local network address\. useIpv6: \w{1,5}, code: -\d{1,4}, "
        r"name: EACCES",
        "RuntimeError: The server socket has failed to listen on any local network address. useIpv6: 0, code: -13, "
        "name: EACCES, message: permission denied",
    ),
    _entry(
        "port-of-endpoint-invalid", CAUSE, "NET009", "L03", "' must be an integer",
        r"The port number of the (?:rendezvous endpoint|C10d store) '(?P<endpoint>[^']{1,200})' must be an integer",
        "ValueError: The port number of the rendezvous endpoint '127.0.0.1:99999' must be an integer between 0 and "
        "65536.",
        gates=("The port number of the ",),
    ),
    _entry(
        "port-of-store-invalid", CAUSE, "NET009", "L03", "must have value from 0 to 65535",
        r"ValueError: port must have value from 0 to 65535 but was (?P<port>-?\d{1,12})",
        "ValueError: port must have value from 0 to 65535 but was 99999.",
        gates=("ValueError: port must",),
    ),
    _entry(
        "port-of-url-invalid", CAUSE, "NET009", "L03", "Port out of range 0-65535",
        r"ValueError: Port out of range 0-65535",
        "ValueError: Port out of range 0-65535",
        condition="no frame of the exception is torch/distributed: then it is another URL's port",
    ),
    _entry(
        "name-unresolvable", CAUSE, "NET002", "L04 L06", "(gai error",
        r"The (?:IPv[46] )?network addresses of \((?P<host>[^,()]{1,255}), (?P<port>\d{1,5})\) cannot be retrieved "
        r"\(gai error: (?P<error>-?\d{1,5})",
        "[W1121 00:55:51.145529403 socket.cpp:764] [c10d] The IPv6 network addresses of (no-such-host.invalid, "
        "29511) cannot be retrieved (gai error: -2 - Name or service not known).",
        condition="the job came up all the same; or the name was published by a peer: then it is NET008",
        gates=("The IPv6 network addresses", "The IPv4 network addresses", "The network addresses"),
    ),
    _entry(
        "loopback-dialled", CAUSE, "NET003", "N01", "connectFullMesh failed",
        r"connectFullMesh failed.{0,600}?remote=\[(?P<address>127\.\d{1,3}\.\d{1,3}\.\d{1,3}|::1)\]",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "failed to connect, willRetry=0, retryLimit=3, rank=1, size=2, local=[127.0.0.1]:17155, "
        "remote=[127.0.1.1]:23961, error=SO_ERROR: Connection refused, remote=[127.0.1.1]:23961",
        condition="all ranks are on one node: there loopback is right",
    ),
    _entry(
        "loopback-fallback", CAUSE, "NET003", "N01", "Using the loopback address as fallback",
        r"Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback",
        "[W1120 10:00:01.101 ProcessGroupGloo.cpp:760] Warning: Unable to resolve hostname to a (local) address. "
        "Using the loopback address as fallback. Manually set the network interface to bind to with "
        "GLOO_SOCKET_IFNAME. (function operator())",
        condition="all ranks are on one node; or the job came up all the same",
    ),
    _entry(
        "gloo-interface-missing", CAUSE, "NET004", "N03 N04", "Unable to find address for",
        r"Unable to find address for:? (?P<value>\S{1,100})",
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: eth9",
    ),
    _entry(
        "nccl-interface-missing", CAUSE, "NET004", "N02 N07", "socket interface found",
        r"(?:Bootstrap ?|NET/Socket |NET/ND ): no socket interface found",
        "node-b:4711:4711 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        gates=("Bootstrap : no", "NET/Socket : no", "NET/ND : no", "Bootstrap: no"),
    ),
    _entry(
        "gloo-mesh-timed-out", CAUSE, "NET005", "N05", "connectFullMesh failed",
        r"connectFullMesh failed.{0,800}?(?:Connect timeout|timed out connecting|Connection timed out"
        r"|No route to host)",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "failed to connect, willRetry=0, retryLimit=3, rank=1, size=2, local=[10.0.0.2]:17155, "
        "remote=[10.0.0.1]:23961, error=Connect timeout [none]",
        condition="all ranks are on one node",
    ),
    _entry(
        "nccl-connect-timed-out", CAUSE, "NET005", "N05 N02", "Connect to ",
        r"Connect to (?P<address>[\da-fA-F.:%\w]{1,60})<(?P<port>\d{1,5})> (?:failed|returned).{0,40}?"
        r"(?:Connection timed out|No route to host|Network is unreachable)",
        "node-b:4711:4801 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.1<45123> failed : "
        "Connection timed out",
    ),
    _entry(
        "clients-missing", CAUSE, "NET006", "L08 L09", "clients joined",
        r"Timed out after (?P<seconds>\d{1,9}) seconds waiting for clients\. (?P<joined>\d{1,7})/"
        r"(?P<expected>\d{1,7}) clients joined",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/3 clients joined.",
    ),
    _entry(
        "rendezvous-timed-out", CAUSE, "NET006", "L08", "RendezvousTimeoutError",
        r"\bRendezvousTimeoutError\b",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        condition="a rank had already failed",
    ),
    _entry(
        "rendezvous-unreachable", CAUSE, "NET007", "L05 L17", "connection to the C10d store has failed",
        r"The connection to the C10d store has failed",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. See inner exception for details.",
        condition="a rank of the job had already started: then the store went away later",
    ),
    _entry(
        "node-without-heartbeat", CAUSE, "NET015", "N09", "been removed from the rendezvous",
        r"the node\(s\) (?P<nodes>.{1,400}?) have been removed from the rendezvous",
        "As part of the sync operation the node(s) 'node-b_4711_0' have been removed from the rendezvous 'job-7' "
        "since they had no heartbeat.",
    ),
    _entry(
        "scheduler-lost-node", CAUSE, "NET015", "N09", "Node failure on",
        r"srun: error: Node failure on (?P<nodes>[\w.-]{1,255})",
        "srun: error: Node failure on node-b",
    ),
    _entry(
        "fabric-error", CAUSE, "NET011", "N09", "Got completion from peer",
        r"NET/IB ?: .{0,40}?Got completion from peer (?P<address>[\w.:%-]{1,60})<\d{1,5}> with "
        r"(?:error|status)[ =](?P<error>\d{1,4})",
        "node-a:4711:4801 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "10.4.16.8<40211> with error 12, opcode 0, len 0, vendor err 129",
        condition="the peer's process had already died",
    ),
    _entry(
        "address-family", NOISE, "NET012", "N06", "(errno: 97",
        r"\(errno: 97 - Address family not supported by protocol\)",
        "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [localhost]:29500 "
        "(errno: 97 - Address family not supported by protocol).",
        gates=("Address family not supported",),
    ),
    _entry(
        "client-hostname", NOISE, None, "N06", "client socket cannot be retrieved",
        r"hostname of the client socket cannot be retrieved",
        "[W socket.cpp:697] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        gates=("The hostname of the client",),
    ),
)

_VARIABLES = "RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK|LOCAL_WORLD_SIZE"

_ENVIRONMENT = (
    _entry(
        "variable-expected", CAUSE, "ENV001", "L10", "expected, but not set",
        rf"environment variable (?P<variable>{_VARIABLES}) expected, but not set",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
    ),
    _entry(
        "variable-looked-up", CAUSE, "ENV001", "L10", "KeyError: '",
        rf"\bKeyError: '(?P<variable>{_VARIABLES})'\s{{0,8}}$",
        "KeyError: 'LOCAL_RANK'",
        condition="the exception's innermost frame is not os.environ's: then it is a dictionary of the user's",
    ),
    _entry(
        "local-rank-argument", CAUSE, "ENV007", "L11", "unrecognized arguments",
        r"error: unrecognized arguments:.{0,2000}?(?P<option>--local[-_]rank)\b",
        "train.py: error: unrecognized arguments: --local-rank=0",
    ),
    _entry(
        "loader-bus-error", CAUSE, "ENV008", "C07 H04", "killed by signal: Bus error",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,10})\) is killed by signal: Bus error",
        "RuntimeError: DataLoader worker (pid 21234) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    _entry(
        "shared-memory-full", CAUSE, "ENV008", "C07", _SHARED,
        r"unable to (?:allocate shared memory\(shm\) for|write to|open|resize) (?:file|shared memory object)? ?"
        rf"<(?P<file>/torch_[^>]{{1,80}})>.{{0,80}}?{_SHARED}",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_12107_3127>: No space left on device "
        "(28)",
    ),
    _entry(
        "nccl-shared-memory-full", CAUSE, "ENV008", "B04", "shared memory segment /dev/shm/",
        r"Error while creating shared memory segment (?P<file>/dev/shm/\S{1,80})",
        "ncclSystemError: Error while creating shared memory segment /dev/shm/nccl-cjY8K5 (size 10617216), error: "
        "No space left on device (28)",
        gates=("Error while creating shared",),
    ),
    _entry(
        "nccl-fallocate-failed", CAUSE, "ENV008", "B04", _SHARED,
        rf"Call to (?:posix_fallocate|ftruncate|fallocate) failed ?: {_SHARED}",
        "node-a:168:168 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed: No space left on device",
    ),
    _entry(
        "loader-files-exhausted", CAUSE, "ENV009", "C09", "Too many open files. Communication",
        r"Too many open files\. Communication with the workers is no longer possible",
        "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase "
        "the limit using `ulimit -n` in the shell or change the sharing strategy by calling "
        "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code",
    ),
    _entry(
        "ancillary-data-lost", CAUSE, "ENV009", "C09", "RuntimeError: received ",
        r"RuntimeError: received \d{1,6} items of ancdata",
        "RuntimeError: received 0 items of ancdata",
    ),
    _entry(
        "memory-not-locked", CAUSE, "ENV010", "N08", "failed with error Cannot allocate memory",
        r"ibv_reg_\w{1,20} failed with error Cannot allocate memory",
        "node-a:412:498 [0] transport/net_ib.cc:777 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate "
        "memory",
    ),
    _entry(
        "files-exhausted", CAUSE, "ENV009", "C09", "[Errno 24]",
        r"OSError: \[Errno 24\] Too many open files",
        "OSError: [Errno 24] Too many open files: '/data/shard-00017.bin'",
    ),
    _entry(
        "agent-hung-up", CAUSE, "ENV012", "L19", "SignalException: Process ",
        r"SignalException: Process (?P<pid>\d{1,10}) got signal: 1\b",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 17912 got signal: 1",
    ),
    _entry(
        "agent-passes-hangup", CAUSE, "ENV012", "L19", "closing signal SIGHUP",
        r"Sending process (?P<pid>\d{1,10}) closing signal SIGHUP",
        "W1120 10:01:07.310000 17912 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 17920 "
        "closing signal SIGHUP",
    ),
    _entry(
        "spawn-unguarded", CAUSE, "ENV017", "L18", "An attempt has been made to start a new process",
        r"An attempt has been made to start a new process before the",
        "        An attempt has been made to start a new process before the",
    ),
    _entry(
        "group-uninitialised", CAUSE, "ENV019", "L20", "Default process group",
        r"Default process group (?:has not been|is not) initialized",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        condition="the group had been initialised and was destroyed because another rank failed",
    ),
    _entry(
        "group-initialised-twice", CAUSE, "ENV019", "L20", "initialize the default process group twice",
        r"trying to initialize the default process group twice",
        "ValueError: trying to initialize the default process group twice!",
    ),
)

_ASYNCHRONOUS = (
    "device-side assert triggered|an illegal memory access was encountered|unspecified launch failure"
    "|misaligned address|an illegal instruction was encountered|invalid program counter|hardware stack error"
    "|operation not supported on global/shared address space|the launch timed out and was terminated"
)
"""docs.nvidia.com, CUDA Runtime API, "Error handling": errors of kernels, which come with a later call."""

_DEVICES = (
    _entry(
        "device-shared", CAUSE, "BKD003", "B01", "Duplicate GPU detected",
        r"Duplicate GPU detected ?: ?rank (?P<rank>\d{1,7}) and rank (?P<other>\d{1,7}) both on CUDA device "
        r"(?P<device>\w{1,20})",
        "node-a:4711:4801 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device "
        "1000",
    ),
    _entry(
        "device-ordinal", CAUSE, "BKD004", "B02", "invalid device ordinal",
        r"(?:CUDA error: |HIP error: |Cuda failure '?(?:\d{1,4} ')?)invalid device ordinal",
        "RuntimeError: CUDA error: invalid device ordinal",
        gates=("CUDA error: invalid", "HIP error: invalid", "Cuda failure"),
    ),
    _entry(
        "kernel-image-missing", CAUSE, "BKD005", "B09", "no kernel image is available",
        r"(?:CUDA error: |HIP error: |Cuda failure .{0,8}?)no kernel image is available for execution on the device",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        gates=("CUDA error: no kernel", "Cuda failure", "HIP error: no kernel"),
    ),
    _entry(
        "driver-old", CAUSE, "BKD005", "B09", "driver on your system is too old",
        r"The NVIDIA driver on your system is too old \(found version (?P<driver>\d{1,6})\)",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
        "driver by downloading and installing a new version",
        gates=("The NVIDIA driver",),
    ),
    _entry(
        "driver-insufficient", CAUSE, "BKD005", "B09", "driver version is insufficient",
        r"CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        gates=("CUDA driver version",),
    ),
    _entry(
        "library-symbol-missing", CAUSE, "BKD006", "B06", "undefined symbol: nccl",
        r"Error: .{0,300}?undefined symbol: (?P<symbol>nccl\w{1,60})",
        "ImportError: /opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: "
        "ncclCommResume",
        gates=("ImportError: ", "OSError: "),
    ),
    _entry(
        "peer-access-unsupported", CAUSE, "BKD007", "B05", "CUDA error: peer access",
        r"CUDA error: peer access is not supported between these two devices",
        "RuntimeError: CUDA error: peer access is not supported between these two devices",
    ),
    _entry(
        "backend-not-built", CAUSE, "BKD001", "", "Distributed package doesn't have",
        r"Distributed package doesn't have (?P<backend>\w{2,20}) built in",
        "RuntimeError: Distributed package doesn't have NCCL built in",
    ),
    _entry(
        "backend-without-device", CAUSE, "BKD001", "", "is only supported with GPUs, no GPUs found",
        r"ProcessGroup(?P<backend>NCCL|XCCL) is only supported with GPUs, no GPUs found",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ),
    _entry(
        "backend-unknown", CAUSE, "BKD001", "", "backend type",
        r"Unknown (?:c10d )?backend type (?P<backend>[A-Za-z]\w{0,30})",
        "AssertionError: Unknown backend type foo",
        gates=("Unknown c10d backend", "Unknown backend type"),
    ),
    _entry(
        "devices-absent", CAUSE, "BKD001", "", "No CUDA GPUs are available",
        r"No CUDA GPUs are available",
        "RuntimeError: No CUDA GPUs are available",
    ),
    _entry(
        "launcher-without-device", CAUSE, "BKD001", "", "is not available.",
        r"ValueError: (?P<device>Cuda|Xpu|Hpu|Npu|Mtia) is not available\.\s{0,8}$",
        "ValueError: Cuda is not available.",
        gates=("ValueError: ",),
        condition="said by the launcher, which was asked for as many ranks as there are GPUs",
    ),
    _entry(
        "device-without-backend", CAUSE, "BKD008", "B07", "No backend type associated",
        r"No backend type associated with device type (?P<device>\w{1,20})",
        "RuntimeError: No backend type associated with device type cpu",
    ),
    _entry(
        "tensor-not-on-device", CAUSE, "BKD008", "B07", "must be CUDA and dense",
        r"Tensors must be CUDA and dense",
        "RuntimeError: Tensors must be CUDA and dense",
    ),
    _entry(
        "mpi-without-device", CAUSE, "BKD008", "B07", "doesn't have CUDA-aware MPI",
        r"CUDA tensor detected and the MPI used doesn't have CUDA-aware MPI support",
        "RuntimeError: CUDA tensor detected and the MPI used doesn't have CUDA-aware MPI support",
    ),
    _entry(
        "device-guessed", CAUSE, "BKD009", "B08", "currently unknown",
        r"using (?:best-guess )?GPU (?P<device>\d{1,4}) (?:to perform barrier )?as devices? used by this process "
        r"(?:are|is) currently unknown",
        "[rank6]:[W1109 22:19:24.164824990 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 6]  using GPU 6 to "
        "perform barrier as devices used by this process are currently unknown. This can potentially cause a hang "
        "if this rank to GPU mapping is incorrect.",
        gates=("using GPU ", "using best-guess GPU "),
    ),
    _entry(
        "device-memory", CAUSE, "ERR008", "", "out of memory. Tried to allocate",
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<size>[\d.]{1,12} [KMGT]?i?B)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.11 GiB of which 1.02 GiB is free.",
    ),
    _entry(
        "device-memory-driver", CAUSE, "ERR008", "", "error: out of memory",
        r"(?:CUDA|HIP) error: out of memory",
        "RuntimeError: CUDA error: out of memory",
        gates=("CUDA error: out of memory", "HIP error: out of memory"),
    ),
    _entry(
        "device-memory-blas", CAUSE, "ERR008", "", "CUBLAS_STATUS_ALLOC_FAILED",
        r"CUDA error: CUBLAS_STATUS_ALLOC_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    _entry(
        "device-assertion", CAUSE, "ERR007", "B10", "Assertion `",
        r"(?<![\w./-])(?P<file>[\w./-]{1,200}\.cuh?):(?P<line>\d{1,6}): .{1,300}?: block: \[[\d,]{1,40}\], thread: "
        r"\[[\d,]{1,40}\],? ?Assertion `(?P<assertion>[^`]{1,200})` failed",
        "../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [17,0,0], thread: [64,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.",
    ),
    _entry(
        "device-error", CAUSE, "ERR007", "B10", " error: ",
        rf"(?:CUDA|HIP) error: (?P<what>{_ASYNCHRONOUS})",
        "RuntimeError: CUDA error: device-side assert triggered",
        gates=("CUDA error: ", "HIP error: "),
    ),
    _entry(
        "device-library-error", CAUSE, "ERR007", "B10", "_STATUS_EXECUTION_FAILED",
        r"(?P<what>(?:CUBLAS|CUDNN|CUSPARSE|CUFFT)_STATUS_EXECUTION_FAILED)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, "
        "k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
    ),
)

_COLLECTIVES = (
    _entry(
        "mismatch-found-by-wrapper", CAUSE, "COL003", "D21", "Detected mismatch between collectives",
        r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d{1,7}) is running collective: "
        r"(?P<own>.{1,400}?), but Rank (?P<other>\d{1,7}) is running collective: (?P<others>.{1,400})",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=BARRIER).",
    ),
    _entry(
        "mismatch-of-sizes", CAUSE, "COL003", "D21", "op.preamble.length <= op.nbytes",
        r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d{1,15}) vs (?P<expected>\d{1,15})",
        "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length "
        "<= op.nbytes. 30000 vs 4. Received data size doesn't match expected size. Is there a distributed "
        "collective mismatch in your code?",
    ),
    _entry(
        "mismatch-suspected", CAUSE, "COL003", "D21", "distributed collective mismatch",
        r"Received data size doesn't match expected size\. Is there a distributed collective mismatch",
        "RuntimeError: Received data size doesn't match expected size. Is there a distributed collective mismatch "
        "in your code?",
        gates=("Received data size",),
    ),
    _entry(
        "mismatch-found-by-nccl", CAUSE, "COL003", "D21", "Mismatched collective",
        r"Mismatched collectives? detected",
        "NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 1",
    ),
    _entry(
        "barrier-names-ranks", CONSEQUENCE, "COL002", "D19 C08", "monitoredBarrier",
        r"Ranks? (?P<missing>\d[\d, ]{0,400}?) failed to pass monitoredBarrier in (?P<ms>\d{1,12}) ms",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
    ),
    _entry(
        "nccl-timed-out", CONSEQUENCE, "COL005", "B11", "Watchdog caught collective operation timeout",
        r"Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<sequence>\d{1,12}), )?"
        r"OpType=(?P<op>\w{1,40})(?:.{0,200}?Timeout\(ms\)=(?P<ms>\d{1,12}))?",
        "[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, NumelOut=131072000, Timeout(ms)=600000) "
        "ran for 600081 milliseconds before timing out.",
    ),
    _entry(
        "nccl-work-status", CONSEQUENCE, None, "B11", "ast enqueued ",
        r"\[PG (?:ID )?(?P<group>\d{1,6})\b[^\]]{0,160}? Rank \d{1,7}\].{0,300}?[Ll]ast enqueued (?:NCCL )?work: "
        r"(?P<enqueued>-?\d{1,12}),.{0,60}?last completed (?:NCCL )?work: (?P<completed>-?\d{1,12})",
        "[rank118]:[E603 17:48:01.005538748 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 118]  "
        "failure detected by watchdog at work sequence id: 2398459 PG status: last enqueued work: 2398578, last "
        "completed work: 2398458",
        gates=("ast enqueued work: ", "ast enqueued NCCL work: "),
    ),
    _entry(
        "gloo-timed-out", CONSEQUENCE, "COL005", "B11 S04 N09", "Timed out waiting ",
        r"Timed out waiting (?P<ms>\d{1,12})ms for (?P<what>recv|send) operation to complete",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
        "6000ms for recv operation to complete",
    ),
    _entry(
        "gloo-closed-on-timeout", CONSEQUENCE, "COL005", "B11", "Application timeout caused pair closure",
        r"Application timeout caused pair closure",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Application timeout "
        "caused pair closure",
    ),
)

_WRAPPER = (
    _entry(
        "parameters-unused", CAUSE, "DDP001", "D01 D02 D08", "Expected to have finished reduction",
        r"Expected to have finished reduction in the prior iteration before starting a new one\. This error "
        r"indicates that your module has parameters that were not used",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error indicates that your module has parameters that were not used in producing loss. You can enable "
        "unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
        "`torch.nn.parallel.DistributedDataParallel`, and by ",
        condition="only some ranks say it: then it is DDP002",
    ),
    _entry(
        "graph-changed-unused", CAUSE, "DDP004", "D05", "Expected to have finished reduction",
        r"Expected to have finished reduction in the prior iteration.{0,80}?your training graph has changed",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error indicates that your training graph has changed in this iteration, e.g., one parameter is used in "
        "first iteration, but then got unused in the second iteration. this is not compatible with static_graph "
        "set to True.",
    ),
    _entry(
        "graph-changed", CAUSE, "DDP004", "D05", "Your training graph has changed",
        r"Your training graph has changed in this iteration",
        "RuntimeError: Your training graph has changed in this iteration, e.g., one parameter is unused in first "
        "iteration, but then got used in the second iteration. this is not compatible with static_graph set to "
        "True.",
    ),
    _entry(
        "unused-indices", CAUSE, None, "D01", "did not receive grad for rank",
        r"Parameter indices which did not receive grad for rank (?P<rank>\d{1,7}): (?P<indices>\d[\d ]{0,3000})",
        "Parameter indices which did not receive grad for rank 1: 2 3",
        gates=("Parameter indices which",),
    ),
    _entry(
        "unused-names", CAUSE, None, "D01", "did not receive grad for rank",
        r"Parameters which did not receive grad for rank (?P<rank>\d{1,7}): (?P<names>\S.{0,3000})",
        "Parameters which did not receive grad for rank 1: b.weight, b.bias",
        gates=("Parameters which did",),
    ),
    _entry(
        "ready-twice", CAUSE, "DDP003", "D04", "Expected to mark a variable ready only once",
        r"Expected to mark a variable ready only once",
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following "
        "reasons: 1) Use of a module parameter outside the `forward` function. Please make sure model parameters "
        "are not shared across multiple concurrent forward-backward passes.",
    ),
    _entry(
        "ready-twice-parameter", CAUSE, "DDP003", "D04", "marked as ready twice",
        r"Parameter at index (?P<index>\d{1,7})(?: with name (?P<name>[\w.]{1,300}))? has been marked as ready twice",
        "Parameter at index 1 with name a.bias has been marked as ready twice. This means that multiple autograd "
        "engine  hooks have fired for this particular parameter during this iteration.",
        gates=("Parameter at index ",),
    ),
    _entry(
        "parameter-counts-differ", CAUSE, "DDP009", "D18", "DDP expects same model",
        r"DDP expects same model across all ranks, but Rank (?P<rank>\d{1,7}) has (?P<own>\d{1,9}) params, while "
        r"rank (?P<other>\d{1,7}) has inconsistent (?P<others>\d{1,9}) params",
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
        "inconsistent 2 params.",
    ),
    _entry(
        "parameter-sizes-differ", CAUSE, "DDP009", "D18", "] in this process with ",
        r"RuntimeError: \[\d{1,7}\]: params\[(?P<index>\d{1,7})\] in this process with "
        r"(?P<what>sizes|strides) (?P<own>\[[\d, ]{0,200}\]) "
        r"appears not to match (?:sizes|strides) of the same param in process 0",
        "RuntimeError: [1]: params[0] in this process with sizes [4, 5] appears not to match sizes of the same "
        "param in process 0.",
        gates=("RuntimeError: [",),
    ),
    _entry(
        "modified-in-place", CAUSE, "DDP010", "D06", "variables needed for gradient computation",
        r"RuntimeError: one of the variables needed for gradient computation has been "
        r"modified by an inplace operation: \[(?P<tensor>[\w.]{1,80} \[[\d, ]{0,100}\]).{0,120}?is at version "
        r"(?P<version>\d{1,9}); expected version (?P<expected>\d{1,9})",
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.cuda.FloatTensor [64]] is at version 3; expected version 2 instead.",
        condition="the process wrapped no model in DDP, or the wrapper has no buffer: an ordinary error of autograd",
        gates=("RuntimeError: one of the",),
    ),
    _entry(
        "attribute-on-wrapper", CAUSE, "DDP014", "D15", "DistributedDataParallel' object has no attribute",
        r"'DistributedDataParallel' object has no attribute '(?P<attribute>\w{1,100})'",
        "AttributeError: 'DistributedDataParallel' object has no attribute 'generate'",
    ),
    _entry(
        "device-ids-refused", CAUSE, "DDP016", "D16", "device_ids and output_device arguments",
        r"DistributedDataParallel device_ids and output_device arguments only work with.{0,100}?"
        r"(?:got device_ids (?P<ids>[\w\[\]:', ]{1,100}?), output_device.{0,60}?and module parameters "
        r"(?P<devices>.{1,200}))?$",
        "ValueError: DistributedDataParallel device_ids and output_device arguments only work with "
        "single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], output_device None, and "
        "module parameters {device(type='cpu')}.",
        gates=("DistributedDataParallel device_ids",),
    ),
    _entry(
        "device-ids-several", CAUSE, "DDP016", "D16", "device_ids can only be None or contain",
        r"device_ids can only be None or contain a single element",
        "ValueError: device_ids can only be None or contain a single element.",
    ),
    _entry(
        "device-types-mixed", CAUSE, "DDP016", "D16", "must be on the same type of devices",
        r"DistributedDataParallel's input module must be on the same type of devices, but input module parameters "
        r"locate in (?P<devices>.{1,100})",
        "ValueError: DistributedDataParallel's input module must be on the same type of devices, but input module "
        "parameters locate in {'cpu', 'cuda'}.",
        gates=("DistributedDataParallel's input",),
    ),
    _entry(
        "nothing-trainable", CAUSE, "DDP017", "D17", "DistributedDataParallel is not needed",
        r"DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient",
        "RuntimeError: DistributedDataParallel is not needed when a module doesn't have any parameter that requires "
        "a gradient.",
    ),
)

_FILES = (
    _entry(
        "archive-unreadable", CAUSE, "CKP002", "C01 C03", "PytorchStreamReader failed",
        r"PytorchStreamReader failed (?:reading|finding|locating|in)[^:]{0,80}",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        condition="no other rank wrote or read the same file, and all ranks fail alike: the file itself is broken",
    ),
    _entry(
        "archive-truncated", CAUSE, "CKP002", "C03", "unexpected EOF, expected",
        r"unexpected EOF, expected \d{1,15} more bytes\. The file might be corrupted",
        "RuntimeError: unexpected EOF, expected 234561 more bytes. The file might be corrupted.",
        condition="as archive-unreadable",
    ),
    _entry(
        "parent-directory-missing", CAUSE, "CKP002", "C03", "Parent directory ",
        r"Parent directory (?P<path>\S.{0,300}?) does not exist",
        "RuntimeError: Parent directory /ckpt/run-7 does not exist.",
        condition="all ranks say it: then nobody made the directory",
    ),
    _entry(
        "prefix-unexpected", CAUSE, "CKP004", "C05", "Unexpected key(s) in state_dict",
        r"Unexpected key\(s\) in state_dict: \"module\.(?P<key>[\w.]{1,200})\"",
        "\tUnexpected key(s) in state_dict: \"module.weight\", \"module.bias\". ",
    ),
    _entry(
        "prefix-missing", CAUSE, "CKP004", "C05", "Missing key(s) in state_dict",
        r"Missing key\(s\) in state_dict: \"module\.(?P<key>[\w.]{1,200})\"",
        "\tMissing key(s) in state_dict: \"module.weight\", \"module.bias\". ",
    ),
    _entry(
        "directory-exists", CAUSE, "CKP005", "C06 S09", "FileExistsError: [Errno 17]",
        r"FileExistsError: \[Errno 17\] File exists: '(?P<path>[^'\n]{1,400})'",
        "FileExistsError: [Errno 17] File exists: 'runs/exp1'",
        condition="every rank says it: then the path was there before, and nothing raced",
    ),
)

_CRASHES = (
    _entry(
        "kernel-killed", CAUSE, "ERR002", "H03", "Kill",
        r"(?:[Oo]ut of memory|oom-kill[^:]{0,40}): Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"(?: \((?P<command>[^)]{1,40})\))?",
        "[1234567.890123] Memory cgroup out of memory: Killed process 31415 (python) total-vm:75497472kB, "
        "anon-rss:33554432kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:66000kB oom_score_adj:0",
    ),
    _entry(
        "scheduler-saw-kill", CAUSE, "ERR002", "H03", "error: Detected ",
        r"\berror: Detected (?P<count>\d{1,9}) oom[_-]kill event",
        "slurmstepd-node1: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM "
        "Killed.",
        gates=("Detected ",),
    ),
    _entry(
        "scheduler-memory-limit", CAUSE, "ERR002", "H03", "exceeded memory limit",
        r"(?:StepId=|[Ss]tep |[Jj]ob )(?P<step>\d{1,12}(?:\.\w{1,20})?) exceeded memory limit",
        "slurmstepd: error: StepId=14.batch exceeded memory limit (8421376 > 8388608), being killed",
    ),
    _entry(
        "scheduler-out-of-memory", CAUSE, "ERR002", "H03", ": Out Of Memory",
        r"srun: error: [\w.,\[\]-]{1,200}: tasks? [\d,\[\]-]{1,200}: Out Of Memory",
        "srun: error: node1: task 3: Out Of Memory",
        gates=("Out Of Memory",),
    ),
    _entry(
        "loader-killed", CAUSE, "ERR002", "H03", "killed by signal: Killed",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,10})\) is killed by signal: Killed",
        "RuntimeError: DataLoader worker (pid 21234) is killed by signal: Killed. ",
        condition="the kernel and the cgroup say nothing: then it is ERR005",
    ),
    _entry(
        "loader-crashed", CAUSE, "ERR004", "H05", "killed by signal: Segmentation fault",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,10})\) is killed by signal: Segmentation fault",
        "RuntimeError: DataLoader worker (pid 21234) is killed by signal: Segmentation fault. ",
    ),
    _entry(
        "script-missing", CAUSE, "ERR009", "", "can't open file",
        r"can't open file '(?P<file>[^'\n]{1,400})': \[Errno (?P<errno>\d{1,3})\]",
        "/usr/bin/python: can't open file '/srv/job/trian.py': [Errno 2] No such file or directory",
        gates=(": [Errno ",),
    ),
    _entry(
        "module-missing", CAUSE, "ERR009", "", "Error while finding module specification",
        r"Error while finding module specification for '(?P<module>[\w.]{1,200})'",
        "/usr/bin/python: Error while finding module specification for 'pkg.train' (ModuleNotFoundError: No module "
        "named 'pkg')",
    ),
    _entry(
        "module-not-runnable", CAUSE, "ERR009", "", "No module named",
        r"python[\d.]{0,5}: No module named (?P<module>[\w.]{1,200})",
        "/usr/bin/python: No module named pkg.train.__main__; 'pkg.train' is a package and cannot be directly "
        "executed",
    ),
    _entry(
        "aborted-at-exit", NOISE, "ERR010", "", "terminate called without an active exception",
        r"terminate called without an active exception",
        "terminate called without an active exception",
    ),
)

_WIDE = (
    # Only after everything narrower: each of these is said for several reasons.
    _entry(
        "nccl-remote-error", CONSEQUENCE, None, "H02 N09", "emote",
        r"\bncclRemoteError\b|remote process exited or there was a network error",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:"
        "1970, remote process exited or there was a network error, NCCL version 2.20.5",
        gates=("ncclRemoteError", "remote process exited or there was"),
    ),
    _entry(
        "nccl-peer-closed", CONSEQUENCE, None, "H02", "onnection",
        r"(?:NCCL WARN|socketProgress|Call to (?:recv|send) |ncclSocket|NET/Socket).{0,200}?"
        r"(?:[Cc]onnection closed by remote peer|[Cc]onnection (?:reset|closed) by peer|Broken pipe"
        r"|[Cc]onnection refused)",
        "node-b:4711:4801 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer "
        "node-a<45123>",
        gates=("NCCL WARN", "socketProgress", "Call to recv ", "Call to send ", "ncclSocket", "NET/Socket"),
    ),
    _entry(
        "nccl-failed", CAUSE, "BKD002", "B09 B12 B04", "nccl",
        r"\bnccl(?:SystemError|InternalError|UnhandledCudaError|InvalidUsage|InvalidArgument)\b",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        gates=(
            "ncclSystemError", "ncclInternalError",
            "ncclUnhandledCudaError", "ncclInvalidUsage", "ncclInvalidArgument",
        ),
    ),
    _entry(
        "nccl-failed-in-torch", CAUSE, "BKD002", "B09", "NCCL error in: ",
        r"NCCL error in: \S{1,300}, "
        r"(?P<what>unhandled (?:system|cuda) error|internal error|invalid (?:usage|argument))",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:"
        "1970, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5",
    ),
    _entry(
        "gloo-mesh-refused", CONSEQUENCE, None, "L15 N01 H02", "connectFullMesh failed",
        r"connectFullMesh failed.{0,800}?(?:Connection refused|Connection (?:reset|closed) by peer|Socket closed)",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "failed to connect, willRetry=0, retryLimit=3, rank=1, size=2, local=[10.0.0.2]:17155, "
        "remote=[10.0.0.1]:23961, error=SO_ERROR: Connection refused, remote=[10.0.0.1]:23961",
        unless=r"remote=\[(?:127\.|::1\])",
        condition="a file:// rendezvous: then it is NET010",
    ),
    _entry(
        "gloo-mesh-failed", CAUSE, "BKD002", "B12", "connectFullMesh failed",
        r"connectFullMesh failed",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] "
        "no error",
        unless=r"Connection refused|Connection (?:reset|closed) by peer|Socket closed|Connect timeout|timed out"
        r"|No route to host|remote=\[(?:127\.|::1\])",
    ),
    _entry(
        "gloo-device-unsupported", CAUSE, "BKD002", "", "(): unsupported gloo device",
        r"makeDeviceFor(?:Hostname|Interface)\(\): unsupported gloo device",
        "RuntimeError: makeDeviceForHostname(): unsupported gloo device",
        gates=("makeDeviceFor",),
    ),
    _entry(
        "gloo-enforce-failed", CAUSE, "BKD002", "", "[enforce fail at",
        r"RuntimeError: \[enforce fail at (?P<place>\S{0,200}gloo/\S{1,120}:\d{1,5})\]",
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:208] rp != nullptr. "
        "Unable to resolve address",
        gates=("RuntimeError: [enforce",),
        unless=r"op\.preamble\.|Unable to find address",
    ),
)

_VICTIMS = (
    _entry(
        "gloo-peer-gone", CONSEQUENCE, None, "H02 T03 D26", "gloo/",
        _GLOO + r".{0,120}?(?:Connection (?:closed|reset) by peer|Socket closed|Socket unexpectedly closed|Broken pipe"
        r"|Connection refused|Connection timed out|No route to host|Pair is not connected)",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:3990. This is typically caused by a remote worker crashing. Check the logs of the remote "
        "worker before reporting an error. GLHF!",
        gates=(
            "Connection closed by peer", "Connection reset by peer", "Socket closed", "Socket unexpectedly closed",
            "Broken pipe", "Connection refused", "Connection timed out", "No route to host", "Pair is not connected",
        ),
    ),
    _entry(
        "store-gone", CONSEQUENCE, None, "T03 H02", " failed on ",
        r"(?:sendBytes|recvBytes|recvValue|recvVector|recvValueWithTimeout|sendValue) failed on ",
        "[W1120 01:13:20.892421310 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=102, "
        "addr=[node-a]:33978, remote=[node-a]:5000): Broken pipe",
        gates=("Bytes failed on ", "Value failed on ", "Vector failed on ", "Timeout failed on "),
    ),
    _entry(
        "store-closed", CONSEQUENCE, None, "T03 H02", "Connection was likely closed",
        r"Failed to (?:recv|send), (?:got|sent) 0 bytes\. Connection was likely closed",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the "
        "remote server shutdown or crash?",
    ),
    _entry(
        "store-unchecked", CONSEQUENCE, None, "T03", "flag on TCPStore",
        r"Failed to check the \"should dump\" flag on TCPStore",
        "[rank3]:[W825 07:38:02.806977494 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0(default_pg) Rank 3] Failed "
        "to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with "
        "error: Broken pipe",
    ),
    _entry(
        "store-network-error", CONSEQUENCE, None, "H02 L17", "DistNetworkError: ",
        r"DistNetworkError: (?:Connection reset by peer|Broken pipe|Connection refused|failed to recv, got 0 bytes)",
        "torch.distributed.DistNetworkError: Connection reset by peer",
    ),
    _entry(
        "store-timed-out", CONSEQUENCE, None, "L06 D25", " timeout after ",
        r"(?:DistStoreError|RuntimeError): (?:wait|barrier) timeout after (?P<ms>\d{1,12})ms, "
        r"keys?: (?P<key>\S{1,300})",
        "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/1",
        gates=("DistStoreError: ", "RuntimeError: wait", "RuntimeError: barrier"),
    ),
    _entry(
        "store-socket-timed-out", CONSEQUENCE, None, "H02", "Socket Timeout",
        r"(?:RuntimeError|DistStoreError|DistNetworkError): Socket Timeout",
        "RuntimeError: Socket Timeout",
    ),
    _entry(
        "key-timed-out", CONSEQUENCE, None, "N07", "Timeout waiting for key: ",
        r"Timeout waiting for key: (?P<key>\S{1,200})",
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by store->get('0'), but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after "
        "1800000 ms",
    ),
    _entry(
        "client-timed-out", CONSEQUENCE, None, "L04 L08", "client socket has timed out",
        r"client socket has timed out after (?P<ms>\d{1,12})m?s while trying to connect to "
        r"\((?P<host>[^,()]{1,255}), (?P<port>\d{1,5})\)",
        "[E1121 00:55:53.426179224 socket.cpp:1028] [c10d] The client socket has timed out after 4000ms while "
        "trying to connect to (node-a, 29511).",
        gates=("The client socket has timed out",),
    ),
    _entry(
        "nccl-aborted", CONSEQUENCE, None, "H02", "NCCL communicator",
        r"NCCL communicator (?:encountered|was aborted|has been aborted)",
        "RuntimeError: NCCL communicator was aborted on rank 1.",
    ),
    _entry(
        "nccl-takes-process-down", CONSEQUENCE, None, "B11", "NCCL operations have failed",
        r"Some NCCL operations have failed or timed out",
        "[rank0]:[E ProcessGroupNCCL.cpp:537] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    ),
    _entry(
        "nccl-dump-signal", CONSEQUENCE, None, "B11", "Received a dump signal",
        r"Received a dump signal (?:due to|from)",
        "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to "
        "a collective timeout from rank 0 and we will try our best to dump the debug info.",
    ),
    _entry(
        "agent-ends-rank", CONSEQUENCE, None, "H06", "closing signal SIGTERM",
        r"Sending process (?P<pid>\d{1,10}) closing signal SIGTERM",
        "W1121 00:53:19.232000 2020 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 2023 "
        "closing signal SIGTERM",
    ),
    _entry(
        "agent-kills-rank", CONSEQUENCE, None, "H06", "Unable to shutdown process",
        r"Unable to shutdown process (?P<pid>\d{1,10}) via",
        "W1121 00:53:49.232000 2020 torch/distributed/elastic/multiprocessing/api.py:1047] Unable to shutdown "
        "process 2023 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
    ),
    _entry(
        "agent-saw-exit", CONSEQUENCE, None, "H01 H03 H04 H05", "failed (exitcode: ",
        r"failed \(exitcode: (?P<status>-?\d{1,5})\) local_rank: (?P<local_rank>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)",
        "E1121 00:53:19.244000 2020 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) "
        "local_rank: 1 (pid: 2024) of binary: /opt/venv/bin/python",
    ),
    _entry(
        "agent-reports-signal", CONSEQUENCE, None, "H03 H06", " received by PID ",
        r"Signal (?P<signal>\d{1,3}) \((?P<name>SIG[A-Z0-9]{2,10})\) received by PID (?P<pid>\d{1,10})",
        "  traceback : Signal 15 (SIGTERM) received by PID 21234",
    ),
    _entry(
        "agent-signalled", CONSEQUENCE, None, "L19", "SignalException: Process ",
        r"SignalException: Process (?P<pid>\d{1,10}) got signal: (?P<signal>(?!1\b)\d{1,3})\b",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 17912 got signal: 15",
    ),
    _entry(
        "child-failed", CONSEQUENCE, None, "H01", "ChildFailedError",
        r"\bChildFailedError\b",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ),
    _entry(
        "traceback-not-recorded", CONSEQUENCE, None, "H01", "To enable traceback see",
        r"To enable traceback see: https://\S{0,40}pytorch\.org",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ),
    _entry(
        "rendezvous-closed", CONSEQUENCE, None, "L17", "RendezvousClosedError",
        r"\bRendezvousClosedError\b",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    ),
    _entry(
        "spawned-process-failed", CONSEQUENCE, None, "H01", "Process",
        r"-- Process (?P<index>\d{1,6}) terminated with the following error:|\bProcess(?:Exited|Raised)Exception\b",
        "-- Process 1 terminated with the following error:",
        gates=("-- Process ", "ProcessExitedException", "ProcessRaisedException"),
    ),
    _entry(
        "loader-gone", CONSEQUENCE, None, "C07", "exited unexpectedly",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pids>\d[\d, ]{0,200})\) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid(s) 21234, 21235) exited unexpectedly",
        condition="nothing is known of the worker: then it is the rank's own failure",
    ),
    _entry(
        "rank-terminated", CONSEQUENCE, None, "H06", "Terminated",
        r"^(?:\[[^\]]{1,20}\]:? ?)?Terminated\s{0,8}$",
        "Terminated",
    ),
)

_NOISE = (
    _entry(
        "threads-banner", NOISE, None, "P01", "OMP_NUM_THREADS",
        r"Setting OMP_NUM_THREADS environment variable for each process to be 1",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system "
        "being overloaded, please further tune the variable for optimal performance in your application as needed. ",
    ),
    _entry(
        "group-not-destroyed", NOISE, None, "T01", "destroy",
        r"process group has NOT been destroyed before|WARNING: destroy_process_group\(\) was not called before "
        r"program exit",
        "[rank0]:[W1120 10:00:09.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not "
        "called before program exit, which can leak resources.",
        gates=("has NOT been destroyed", "WARNING: destroy_process_group"),
    ),
    _entry(
        "gradient-strides", NOISE, None, "P06", "Grad strides do not match",
        r"Grad strides do not match bucket view strides",
        "[W reducer.cpp:330] Warning: Grad strides do not match bucket view strides. This may indicate grad was not "
        "created according to the gradient layout contract, or that the param's strides changed since DDP was "
        "constructed.  This is not an error, but may impair performance.",
    ),
    _entry(
        "search-found-nothing", NOISE, None, "P05", "DDP constructor, but did not find any unused parameters",
        r"find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters",
        "[W reducer.cpp:1389] Warning: find_unused_parameters=True was specified in DDP constructor, but did not "
        "find any unused parameters in the forward pass.",
    ),
    _entry(
        "launch-deprecated", NOISE, None, "L11", "The module torch.distributed.launch",
        r"The module torch\.distributed\.launch is deprecated",
        "/opt/venv/lib/python3.11/site-packages/torch/distributed/launch.py:207: FutureWarning: The module "
        "torch.distributed.launch is deprecated",
    ),
    _entry(
        "semaphores-leaked", NOISE, None, "T04", "There appear to be ",
        r"resource_tracker: There appear to be \d{1,9} leaked semaphore",
        "UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown",
    ),
    _entry(
        "device-of-barrier", NOISE, None, "B08", "using the device under current context",
        r"UserWarning: barrier\(\): using the device under current context",
        "UserWarning: barrier(): using the device under current context. You can specify `device_id` in "
        "`init_process_group` to mute this warning.",
        gates=("UserWarning: barrier",),
    ),
    _entry(
        "exception-ignored", NOISE, None, "", "Exception ignored in",
        r"\bException ignored in:? ",
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f5c3a1d2b90>",
    ),
)

ENTRIES: tuple[TextEntry, ...] = (
    *_NETWORK, *_ENVIRONMENT, *_DEVICES, *_COLLECTIVES, *_WRAPPER, *_FILES, *_CRASHES, *_WIDE, *_VICTIMS, *_NOISE,
)
"""All entries, narrow before wide."""
