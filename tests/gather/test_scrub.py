"""Secrets go, what a diagnosis needs stays."""

from __future__ import annotations

import pytest

from ddpdoctor.gather.scrub import scrub, scrub_argv

# Assembled from parts so that no scanner takes this file for a leak.
LETTERS = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7"
HEX40 = "0123456789abcdef0123456789abcdef01234567"
SECRETS = {
    "github": "ghp_" + LETTERS,
    "github-fine": "github_pat_" + LETTERS,
    "hugging-face": "hf_" + LETTERS,
    "openai": "sk-" + "proj-" + LETTERS,
    "aws-id": "AKIA" + "ABCDEFGHIJKLMNOP",
    "gitlab": "glpat-" + LETTERS,
    "slack": "xoxb-" + "123456789012-" + LETTERS,
    "google": "AIza" + LETTERS + LETTERS[:8],
    "nvidia": "nvapi-" + LETTERS,
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0." + LETTERS,
}


@pytest.mark.parametrize("kind", SECRETS)
def test_known_token_shapes_are_hidden_anywhere(kind: str) -> None:
    secret = SECRETS[kind]
    for text in (f"using {secret} now", f"x={secret}", f"'{secret}'", f"({secret})"):
        assert secret not in scrub(text)
        assert "***" in scrub(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("python train.py --password=hunter2", "hunter2"),
        ("KeyError: 'no label of token=hunter2'", "hunter2"),
        ("ValueError: password: 'hunter2' is wrong", "hunter2"),
        ("options=lr=0.1,token=hunter2", "hunter2"),
        ("python train.py --password hunter2 --epochs 3", "hunter2"),
        ("--db-password 'two words'", "two words"),
        ("--hf-token abcdefgh", "abcdefgh"),
        ("--hub_token=abcdefgh", "abcdefgh"),
        ("--api-key=Zm9vYmFy", "Zm9vYmFy"),
        ("--wandb_key Zm9vYmFy", "Zm9vYmFy"),
        ("HF_TOKEN=abcdefgh python x.py", "abcdefgh"),
        ("FOO_TOKEN=plainvalue", "plainvalue"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "abc/def+ghi"),
        ("MY_STRANGE_KEY=abcdef", "abcdef"),
        ("export WANDB_API_KEY=" + HEX40, HEX40),
        ("wandb login " + HEX40, HEX40),
        ("wandb: api key is " + HEX40, HEX40),
        ('{"password": "hunter2", "port": 29500}', "hunter2"),
        ("{'api_key': 'hunter22', 'lr': 0.1}", "hunter22"),
        ("password: hunter2", "hunter2"),
        ("client_secret=abcdefgh", "abcdefgh"),
        ("https://x.invalid/f?token=abcdefgh&n=1", "abcdefgh"),
        ("https://x.invalid/f?X-Amz-Signature=abcdefgh&n=1", "abcdefgh"),
        ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
        ("curl -H 'Authorization: token abcdef123'", "abcdef123"),
        ("Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("curl -u alice:hunter2 http://x", "hunter2"),
        ("git clone https://alice:hunter2@git.invalid/r.git", "hunter2"),
        ("redis://:hunter2@cache:6379/0", "hunter2"),
        ("postgres://alice@db/x", "alice"),
        ("https://hooks.slack.com/services/T000/B000/XXXX", "XXXX"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_are_hidden(text: str, secret: str) -> None:
    scrubbed = scrub(text)
    assert secret not in scrubbed
    assert "***" in scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "commit " + HEX40,
        "git_version = '" + HEX40 + "'",
        "Connection refused, remote=[127.0.1.1]:23961",
        "tcp://10.0.0.1:29500",
        "http://host.invalid:8080/path?epoch=3&batch=8",
        "--max-tokens 4096 --num_tokens=100 --tokenizer=bpe --tokenizer-path /data/tok",
        "--eos-token </s> --pad_token [PAD] --pad-token-id 0",
        "--author-list x --keyword y --key-padding 3 --image-key pixel_values",
        "token=5 tokens=100 per token",
        "unexpected token: 42",
        "the password has expired",
        "PWD=/srv/job OLDPWD=/tmp",
        "--authenticate --passes 3 --first-pass true",
        "RANK=3 WORLD_SIZE=8 MASTER_PORT=29500",
        "/data/long/path/to/some/deep/dir/with/many/parts/file-0001.parquet",
        "/rootfs/etc /srv/root/x /opt/homework/y",
        "GPU-3f9c1e0a-5c1b-4a58-9d4c-2f5b2a9a7e11",
        "job@node-3",
        "sk-learn sk-short hf_hub ghp_x eyJx",
        "basic training of the model",
        "torch.nn.Module.forward(input, target)",
        "NCCL_IB_PKEY=1",
        "",
    ],
)
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/home/alice/run/train.py", "~/run/train.py"),
        ("File '/home/alice/x.py', line 3", "File '~/x.py', line 3"),
        ("/root/.venv/bin/python -c x", "~/.venv/bin/python -c x"),
        ("/Users/bob/x:/home/bob/y", "~/x:~/y"),
        ("/mnt/home/carol/data", "~/data"),
        ("~alice/x", "~/x"),
        ("cd /root", "cd ~"),
    ],
)
def test_home_directories_become_a_tilde(text: str, wanted: str) -> None:
    assert scrub(text) == wanted


def test_own_home_and_user_name_are_hidden_in_unusual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/gpfs/u/dorothea")
    monkeypatch.setenv("USER", "dorothea")
    assert scrub("/gpfs/u/dorothea/x") == "~/x"
    assert scrub("/scratch/dorothea/run") == "/scratch/<user>/run"
    assert scrub("ssh dorothea@login1") == "ssh <user>@login1"
    assert scrub("dorothea.py") == "dorothea.py"


def test_arguments_after_a_secret_option_are_hidden_whole() -> None:
    command = ["python", "/home/alice/train.py", "--password", "a b;c", "--lr", "0.1", "--token", "--fp16"]
    wanted = ["python", "~/train.py", "--password", "***", "--lr", "0.1", "--token", "--fp16"]
    assert scrub_argv(command) == wanted


def test_scrubbing_twice_changes_nothing_more() -> None:
    text = "--password=hunter2 https://a:b@c/d /home/alice/x FOO_TOKEN=abcdefgh"
    assert scrub(scrub(text)) == scrub(text)


def test_a_long_hostile_text_is_scrubbed_in_reasonable_time() -> None:
    text = "a-" * 20_000 + "token" + "_" * 20_000 + "/x" * 20_000
    assert isinstance(scrub(text), str)
