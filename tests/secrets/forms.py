"""Forms in which secrets stand in command lines, logs and source, and innocent texts that look like them.

Every secret is made of parts, so that no scanner takes this file for a leak; none of them was ever valid.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from typing import NamedTuple

MIXED = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0hJxR"
LONG = (MIXED + "uL4nG8rT2wX6") * 6
HEX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
BASE64 = "q1W+e2R/t3Y4u5I6o7P8a9S0dFgHjKlZxCvBnM1Q2w3E4r5T6y7U8i9O0pAsDfGh"
KEY_LINES = tuple(
    base64.b64encode(bytes((i * 73 + j * 151 + i * j * 7) % 256 for j in range(48))).decode()
    for i in range(1, 8)
)
"""Lines of 64 characters, as of a key in PEM."""
LAST_LINE = KEY_LINES[0][:22] + "Q=="


class Form(NamedTuple):
    """One way in which a secret stands in a text."""

    id: str
    text: str
    secret: str
    """What must not be read anywhere; each line of it for itself."""


def _token(id: str, *parts: str) -> Form:
    token = "".join(parts)
    return Form(id, f"request with {token} failed", token)


TOKENS = (
    _token("stripe", "sk_", "live_", MIXED[:24]),
    _token("stripe-restricted", "rk_", "test_", MIXED[:24]),
    _token("stripe-webhook", "whsec", "_", MIXED),
    _token("sendgrid", "SG", ".", MIXED[:22], ".", LONG[:43]),
    _token("vault-service", "hvs", ".", "CAESI", LONG[:91]),
    _token("vault-short", "hvs", ".", MIXED[:24]),
    _token("vault-batch", "hvb", ".", LONG[:140]),
    _token("databricks", "dapi", HEX[:32]),
    _token("databricks-numbered", "dapi", HEX[:32], "-2"),
    _token("replicate", "r8", "_", LONG[:37]),
    _token("discord-bot", "MTA1", MIXED[:20], ".", "GaB3x9", ".", LONG[:38]),
    _token(
        "neptune",
        base64.b64encode(
            json.dumps({"api_address": "https://app.neptune.ai", "api_key": HEX[:36]}).encode()
        ).decode(),
    ),
    _token("github", "ghp", "_", LONG[:36]),
    _token("github-short", "ghp", "_", MIXED[:20]),
    _token("github-fine", "github_", "pat_", LONG[:82]),
    _token("hugging-face", "hf", "_", "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"),
    _token("openai", "sk", "-proj-", MIXED),
    _token("anthropic", "sk", "-ant-api03-", LONG[:93], "AA"),
    _token("aws-id", "AK", "IA", "ABCDEFGHIJKLMNOP"),
    _token("aws-secret", "wJalrXUtnFEMI/K7MDENG/", "bPxRfiCY3xAMP1EK3Y"),
    _token("gitlab", "glpat", "-", MIXED[:20]),
    _token("slack", "xoxb", "-123456789012-123456789012-", MIXED[:24]),
    _token("google", "AI", "za", MIXED, "A"),
    _token("google-oauth", "ya29", ".", MIXED),
    _token("nvidia", "nv", "api-", MIXED),
    _token("groq", "gs", "k_", LONG[:52]),
    _token("jwt", "eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxIn0.", MIXED),
    _token("wandb", "wandb", "_v1_", MIXED),
    _token("langsmith", "ls", "v2_pt_", HEX[:32], "_", HEX[:10]),
    _token("npm", "np", "m_", LONG[:36]),
    _token("pypi", "pyp", "i-", "AgEIcHlwaS5vcmc", LONG[:60]),
    _token("docker", "dckr", "_pat_", MIXED),
    _token("digitalocean", "dop", "_v1_", HEX),
    _token("shopify", "shp", "at_", HEX[:32]),
    _token("mailchimp", HEX[:32], "-us12"),
    _token("telegram", "110201543", ":AA", LONG[:33]),
    _token("azure-ad", "aB3", "8Q~", MIXED[:34]),
    _token("age", "AGE-SECRET-KEY-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQPZRY9X8GF2TVDW0S3JN54KHCE"),
    _token("random", BASE64),
)

NAMED = (
    Form("option", "python train.py --password=hunter2", "hunter2"),
    Form("option-apart", "python train.py --password hunter2 --epochs 3", "hunter2"),
    Form("option-quoted", "--db-password 'two hunter2 words'", "hunter2"),
    Form("option-over-lines", "train.py --password \\\n    hunter2x --epochs 3", "hunter2x"),
    Form("argv-printed", "['train.py', '--api-key', 'hunter2x', '--lr', '0.1']", "hunter2x"),
    Form("argv-json", '["--hf-token", "hunter2x", "--lr", "0.1"]', "hunter2x"),
    Form("numbered", "API_KEY_2=hunter2x", "hunter2x"),
    Form("qualified", "DB_PASSWORD_PROD=hunter2", "hunter2"),
    Form("word-first", "TOKEN_GITHUB=hunter2x", "hunter2x"),
    Form("glued", "PGPASSWORD=hunter2 psql", "hunter2"),
    Form("camel", "dbPassword=hunter2", "hunter2"),
    Form("digits-only", "password=8675309123", "8675309123"),
    Form("short-digits", "password=867530", "867530"),
    Form("dotted", "spark.hadoop.fs.s3a.secret.key=hunter2", "hunter2"),
    Form("colon", "password:hunter2", "hunter2"),
    Form("python-bytes", "connect(password=b'hunter2')", "hunter2"),
    Form("python-raw", 'password = r"hunter2"', "hunter2"),
    Form("python-f", "token = f'hunter2x{1}'", "hunter2x"),
    Form("python-triple", 'secret = """hunter2"""', "hunter2"),
    Form("python-escaped-quote", r"password='it\'s hunter2'", "hunter2"),
    Form("python-call", "SecretStr('x'), password=SecretStr('hunter2')", "hunter2"),
    Form("python-joined", "password = ('zebra9x' 'hunter2')", "hunter2"),
    Form("python-tuple", "auth=('alice', 'hunter2')", "hunter2"),
    Form("python-pair", "[('api_key', 'hunter2x')]", "hunter2x"),
    Form("python-item", "os.environ['HF_TOKEN'] = 'hunter2x'", "hunter2x"),
    Form("python-default", "os.environ.setdefault('DB_PASSWORD', 'hunter2')", "hunter2"),
    Form("python-annotated", "password: str = 'hunter2'", "hunter2"),
    Form("comma-inside", "password=hun,ter2", "ter2"),
    Form("json", '{"password": "hunter2", "port": 29500}', "hunter2"),
    Form("json-escaped", r'body="{\"password\": \"hunter2\", \"port\": 1}"', "hunter2"),
    Form("json-twice-escaped", r'"{\\\"api_key\\\": \\\"hunter2x\\\"}"', "hunter2x"),
    Form("json-unicode", '{"pass\\u0077ord": "hunter2"}', "hunter2"),
    Form("json-over-lines", '{"password":\n    "hunter2"}', "hunter2"),
    Form("yaml", "db:\n  password: hunter2\n  port: 1", "hunter2"),
    Form("yaml-below", "password:\n    hunter2\nport: 1", "hunter2"),
    Form("yaml-block", "private_key: |\n    hunter2x\n    zebra9xx\nport: 1", "hunter2x"),
    Form("html", "password=&quot;hunter2&quot;", "hunter2"),
    Form("odbc", "Driver={ODBC};Server=db;Uid=sa;Pwd=hunter2;Port=1433", "hunter2"),
    Form("azure-storage", f"AccountName=x;AccountKey={BASE64}{BASE64[:22]}==;Suffix=y", BASE64),
    Form("azure-bus", "SharedAccessKeyName=Root;SharedAccessKey=hunter2x", "hunter2x"),
    Form("header", "Authorization: Bearer hunter2.abc", "hunter2.abc"),
    Form("header-basic", "Authorization: Basic YWxpY2U6aHVudGVyMg==", "YWxpY2U6aHVudGVyMg"),
    Form("header-token", "curl -H 'X-Auth-Token: hunter2'", "hunter2"),
    Form("header-dict", "{'Authorization': 'Bearer hunter2', 'Accept': 'x'}", "hunter2"),
    Form("header-dict-key", "headers={'X-Api-Key': 'hunter2', 'DD-API-KEY': 'zebra9x'}", "hunter2"),
    Form("header-list", "[(b'authorization', b'Bearer hunter2')]", "hunter2"),
    Form("cookie", "Set-Cookie: session=hunter2; Path=/", "hunter2"),
    Form("netrc", "machine api.wandb.ai login user password hunter2", "hunter2"),
    Form("netrc-lines", "machine api.wandb.ai\n  login user\n  password hunter2", "hunter2"),
    Form("prose", "could not log in: the password is hunter2", "hunter2"),
    Form("prose-quoted", "wrong password 'hunter2' for alice", "hunter2"),
    Form("prose-backwards", "hunter2 is the password of the database", "hunter2"),
    Form("wandb-login", "wandb login " + HEX[:40], HEX[:40]),
)

PLACED = (
    Form("url", "https://alice:hunter2@git.invalid/r.git", "hunter2"),
    Form("url-at", "postgres://alice:hun@ter2x@db:5432/x", "ter2x"),
    Form("url-slash", "postgres://alice:hun/ter2x@db:5432/x", "ter2x"),
    Form("url-hash", "redis://:hun#ter2x@cache:6379/0", "ter2x"),
    Form("url-user-only", "https://hunter2x@sentry.invalid/1", "hunter2x"),
    Form("mysql-url", "alice:hunter2@tcp(db:3306)/x", "hunter2"),
    Form("sas", "https://a.blob.core.invalid/c?sv=2022-11-02&sp=r&sig=hunter2%2Bzebra%3D", "hunter2%2Bzebra"),
    Form("sas-alone", "sv=2022-11-02&sp=r&sig=hunter2zebra", "hunter2zebra"),
    Form("signed-link", "https://x.invalid/f?X-Amz-Signature=hunter2&n=1", "hunter2"),
    Form("query", "https://x.invalid/f?access_token=hunter2&n=1", "hunter2"),
    Form("query-key", "https://x.invalid/f?key=hunter2x", "hunter2x"),
    Form("url-encoded", "next=%2Flogin%3Fpassword%3Dhunter2%26x%3D1", "hunter2"),
    Form("url-encoded-token", "q=ghp%5F" + LONG[:36], LONG[:36]),
    Form("url-twice-encoded", "next=%253Fapi_key%253Dhunter2x", "hunter2x"),
    Form("slack-hook", "https://hooks.slack.com/services/T000/B000/hunter2x", "hunter2x"),
    Form("discord-hook", "https://discord.com/api/webhooks/123456789/hunter2x", "hunter2x"),
    Form("email", "mail to alice.smith@example.com failed", "alice.smith"),
    Form("p-apart", "python train.py -p hunter2", "hunter2"),
    Form("p-word", "sshpass -p hunter ssh node", "hunter "),
    Form("p-attached", "mysql -u root -phunter", "hunter"),
    Form("p-attached-any", "tool -pSECRETWORD", "SECRETWORD"),
    Form("user-pair", "curl -u alice:hunter2 http://x", "hunter2"),
    Form("comment", "x = 1  # password: hunter2", "hunter2"),
    Form("comment-prose", "x = 1  # the api key is hunter2", "hunter2"),
)

BROKEN = (
    Form("pem", "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\n-----END RSA PRIVATE KEY-----", "MIIEhunter2"),
    Form("pem-cut", "-----BEGIN PRIVATE KEY-----\nMIIEhunter2\nabc9\n\nloss 0.1", "MIIEhunter2"),
    Form(
        "pem-escaped", r"-----BEGIN PRIVATE KEY-----\nMIIEhunter2\n-----END PRIVATE KEY-----\n", "MIIEhunter2"
    ),
    Form("pem-body", "\n".join([*KEY_LINES, LAST_LINE]), "\n".join([*KEY_LINES, LAST_LINE])),
    Form(
        "pem-body-prefixed",
        "\n".join(f"[rank0]: {line}" for line in [*KEY_LINES, LAST_LINE]),
        "\n".join([*KEY_LINES, LAST_LINE]),
    ),
    Form("token-cut", "token ghp" + "_" + LONG[:9] + "\n" + LONG[9:36], LONG[:9] + "\n" + LONG[9:36]),
    Form(
        "token-wrapped",
        "hf" + "_" + LONG[:20] + "\n    " + LONG[20:34] + "\n",
        LONG[:20] + "\n" + LONG[20:34],
    ),
    Form("quoted-over-lines", 'password="hunter2x\nzebra9xx"', "hunter2x\nzebra9xx"),
    Form("joined-over-lines", 'password = ("hunter2x"\n    "zebra9xx")', "hunter2x\nzebra9xx"),
    Form("continued", "password=hunter2x\\\nzebra9xx next", "hunter2x\nzebra9xx"),
)


def _distinguish(number: int, form: Form) -> Form:
    """Return a form whose made-up words no other has, so that what leaks tells where it comes from."""
    text, secret = (
        part.replace("hunter2", f"hunt{number}er2")
        .replace("hun,ter2", f"hun,t{number}er2")
        .replace("ter2x", f"t{number}er2x")
        for part in (form.text, form.secret)
    )
    text, secret = (part.replace("zebra9", f"zebra{number}q9") for part in (text, secret))
    return Form(
        form.id, text, secret.replace("ter2", f"t{number}er2") if form.id == "comma-inside" else secret
    )


FORMS = tuple(_distinguish(number, form) for number, form in enumerate((*TOKENS, *NAMED, *PLACED, *BROKEN)))

ENCODED = tuple(
    Form(
        f"{form.id}-percent", urllib.parse.quote(form.text, safe=""), urllib.parse.quote(form.secret, safe="")
    )
    for form in FORMS[: len(TOKENS) + len(NAMED)]
    if "%" not in form.text and "\\" not in form.text and " " not in form.secret
)
"""The same, as a form of the web sends them."""

INNOCENT = (
    "commit " + HEX[:40],
    "git_version = '" + HEX[:40] + "'",
    "image pytorch/pytorch:2.1.0-cuda12.1@sha256:" + HEX,
    "Connection refused, remote=[127.0.1.1]:23961",
    "tcp://10.0.0.1:29500 tcp://[::1]:29500 http://host.invalid:8080/path?epoch=3&batch=8",
    "--max-tokens 4096 --num_tokens=100 --tokenizer=bpe --tokenizer-path /data/tok max_tokens=512",
    "--eos-token </s> --pad_token [PAD] --pad-token-id 0 bos_token='<s>'",
    "--author-list x --keyword y --key-padding 3 --image-key pixel_values",
    "token=5 tokens=100 per token tokens_per_second=1234.5",
    "token_embedding.weight=0.125 tokenizer=llama token_type_ids=tensor([0, 1])",
    "token_embedding.weight: torch.Size([50257, 768]) vs torch.Size([50304, 768])",
    "key_padding_mask=None attn_mask=tensor past_key_values=None key=value num_key_value_heads=8",
    "forward(query, key_padding_mask=key_padding_mask, need_weights=False)",
    "KeyError: 'module.transformer.layers.10.self_attn.k_proj.weight'",
    'Missing key(s) in state_dict: "module.conv1.weight", "module.bn1.running_mean".',
    'Unexpected key(s) in state_dict: "layer1.0.conv1.weight".',
    "size mismatch for token_embedding.weight: copying a param with shape torch.Size([10, 4])",
    "unexpected token: 42",
    "the password has expired",
    "password required for user; token expired; token is missing; secret not found",
    "def connect(host: str, password: str, token: Optional[str] = None) -> None:",
    "login(token=args.hub_token) and api_key=os.environ['API_KEY'] and password=getpass()",
    "token = self.tokenizer.decode(ids)",
    "password=None secret=null api_key=${API_KEY} token=$TOKEN passwd=<redacted>",
    "PWD=/srv/job OLDPWD=/tmp",
    "--authenticate --passes 3 --first-pass true forward_pass=0.53",
    "RANK=3 WORLD_SIZE=8 MASTER_PORT=29500 MASTER_ADDR=node-3 LOCAL_RANK=1",
    "wait timeout after 15000ms, keys: /default_pg/0//cpu//0/1",
    "Timeout waiting for key: default_pg/0/0 after 1800000 ms",
    "store->get('0') got error: wait timeout, key: store_based_barrier_key:1",
    "/data/long/path/to/some/deep/dir/with/many/parts/file-0001.parquet",
    "/rootfs/etc /srv/root/x /opt/homework/y",
    "/mnt/Data/ImageNet1k/ILSVRC2012/CLS-LOC/train/n01440764/n01440764_10026.JPEG",
    "/nix/store/0c5m2i5b8yxvqz7k3l9d4f6g8h1j2k3l-python3-3.11.9/lib",
    "~/.cache/huggingface/hub/models--gpt2/snapshots/" + HEX[:40] + "/model.safetensors",
    "/tmp/torchinductor_x/ab/cabc3def4ghijk5lmnop6qrstuv7wxyz2ab4cd6ef8gh.py",
    "GPU-3f9c1e0a-5c1b-4a58-9d4c-2f5b2a9a7e11",
    "job@node-3 worker@node-17.cluster.local rank0@gpu-12",
    "git clone git@github.com:org/repo.git",
    "x@w.T + q@k.transpose(-1, -2) @torch.no_grad() @dataclass",
    "sk-learn sk-short hf_transformers sk-internationalization hf_hub ghp_x eyJx sk-learn-contrib-2020 hf_hub_download_v2 npm_config_prefix",
    "basic training of the model",
    "torch.nn.Module.forward(input, target)",
    "NCCL_IB_PKEY=1 NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=mlx5_0:1,mlx5_1:1",
    "torchrun -p 29500 train.py; serve -p 8080:80; nc -p 29500; -p29500",
    "srun -p gpu python train.py; sbatch -p a100 job.sh; mkdir -p out1/run2; ssh -p 2222 node-3",
    "gcc -pthread -pipe -pedantic -O2; ffmpeg -pix_fmt yuv420p; py-spy dump -p 4711",
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_",
    "_ZN3c1016ProcessGroupNCCL8WorkNCCL15checkAndSetExceptionEv+0x1a3",
    "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long>>)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1_AF1EM1_AMAS3_ASGT_ASAE01_ASCE01_ASEM1_AAC0",
    "triton_per_fused__native_batch_norm_legit_functional_add_relu_convolution_backward_12_0d1d2d3de4de",
    "FullyShardedDataParallelWithMixedPrecisionAndActivationCheckpointing2Wrapper",
    "nvidia_cublas_cu12-12.1.3.1-py3-none-manylinux1_x86_64.whl",
    "[rank3]:[E1121 00:53:19.244000 2020 ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=128, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)",
    "NCCL WARN NET/IB : Got completion from peer 10.4.16.8<40211> with error 12, opcode 0, len 0, vendor err 129",
    'File "train.py", line 88, in <module>: dist.all_reduce(grad, group=pg)',
    "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
    "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float))",
    "SLURM_JOB_NODELIST=node[001-016],login2 slurmstepd: error: *** STEP 4711.0 ON node001 CANCELLED AT 2025-11-21T00:55:51 ***",
    "rdzv_id=none rdzv_endpoint=node-0:29500 run_id=4f2a91c0",
    "author: x; authority: y; monkey=3; keyboard=1; turkey: 4; passenger=5; compass: north; secretary=z",
    "session 3 of 4; signature: (Tensor input, int dim) -> Tensor; signal=11 sig=11 exit_code=-11",
    "cache_key=layer0 rank_key='a' store_key=/x/0 image_key=pixel_values sort(key=lambda x: x[0])",
    "loss: 0.3127, lr: 1e-4, grad_norm: 2.17, tokens: 524288, step: 1200, mfu: 41.2%",
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO",
    "the user name is used for login at start; user admin has no password set",
    "DataLoader worker (pid(s) 21234, 21235) exited unexpectedly",
    "Secure connection to host:443; key exchange with rank 3 at 10.0.0.2:17155",
    "RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu!",
    "",
)


def leaks(form: Form, text: str) -> list[str]:
    """Return the lines of a form's secret that stand in a text."""
    return [line for line in form.secret.split("\n") if line in text]
