"""No secret of a job comes into a report: neither from argv, environment and output nor from what went wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.marks import long
from tests.watch.injecting import write
from tests.watch.launching import doctor, environ, finish, start

# In parts, so that no scanner of repositories takes them for real ones.
SECRETS = {
    "hugging face": "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567",
    "github": "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345",
    "github, fine-grained": "github_pat_" + "11ABCDEFG0aBcDeFgHiJkL_0123456789abcdefghijABCDEFGHIJ0123456789abcdefghijABCDEFGHI",
    "aws key": "AKIA" + "IOSFODNN7EXAMPL2",
    "aws secret": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY42",
    "weights and biases": "0123456789abcdef" * 2 + "01234567",
    "openai": "sk-" + "proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH",
    "slack": "xoxb-" + "123456789012-1234567890123-abcdefghijklmnopqrstuvwx",
    "password": "hunter2-correct-horse",
    "of a url": "s3cr3t-of-the-url",
    "bearer": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
}  # fmt: skip
SCRIPT = """
    import os
    import subprocess
    import sys

    import torch.distributed as dist

    class Client:
        def __init__(self, url, headers):
            self.url, self.headers = url, headers

        def fetch(self):
            raise ConnectionError("401 with @@, for " + self.url + " with " + str(self.headers) + ", WANDB_API_KEY=" + os.environ["WANDB_API_KEY"]
                + " and key " + os.environ["AWS_ACCESS_KEY_ID"] + ", " + " ".join(sys.argv[1:]))

    def main():
        for name, value in os.environ.items():
            print(name, "=", value, file=sys.stderr)
        print("NCCL error in: x.cpp:1, unhandled system error, token " + os.environ["HF_TOKEN"], file=sys.stderr, flush=True)
        dist.init_process_group("gloo", init_method=os.environ["STORE"] if "STORE" in os.environ else None)
        subprocess.run([sys.executable, "-c", "pass", *sys.argv[1:]])
        try:
            Client(os.environ["DATABASE_URL"], {"Authorization": "Bearer " + os.environ["JWT"]}).fetch()
        except ConnectionError as error:
            raise RuntimeError("cannot log in: " + str(error)) from error

    if sys.argv[1] == "raise":
        main()
    elif sys.argv[1] == "exit":
        sys.exit("wrong password: --password=" + os.environ["PASSWORD"] + " Authorization: Bearer " + os.environ["JWT"])
    elif sys.argv[1] == "abort":
        print("terminate called: login at " + os.environ["DATABASE_URL"] + " failed: RuntimeError: NCCL error in: "
            + os.environ["HF_TOKEN"], file=sys.stderr, flush=True)
        os.abort()
"""


@pytest.mark.parametrize("end", ["raise", *long("exit", "abort")])
def test_reports_hold_no_secret_of_argv_environment_or_output(tmp_path: Path, end: str) -> None:
    script = write(tmp_path, SCRIPT.replace("@@", SECRETS["github"]))  # one that stands in the source
    url = f"postgresql://trainer:{SECRETS['of a url']}@db.example.org/metrics"
    variables = {
        "HF_TOKEN": SECRETS["hugging face"],
        "GITHUB_TOKEN": SECRETS["github"],
        "WANDB_API_KEY": SECRETS["weights and biases"],
        "AWS_ACCESS_KEY_ID": SECRETS["aws key"],
        "AWS_SECRET_ACCESS_KEY": SECRETS["aws secret"],
        "OPENAI_API_KEY": SECRETS["openai"],
        "SLACK_BOT": SECRETS["slack"],
        "PASSWORD": SECRETS["password"],
        "DATABASE_URL": url,
        "JWT": SECRETS["bearer"],
    }
    arguments = [
        end,
        f"--password={SECRETS['password']}",
        "--hf-token",
        SECRETS["hugging face"],
        f"--data={url}",
        f"api_key={SECRETS['weights and biases']}",
        "--header",
        f"Authorization: Bearer {SECRETS['bearer']}",
        SECRETS["github, fine-grained"],
        SECRETS["github"],
        f"https://{SECRETS['slack']}@example.org/x.git",
        f"s3.secret_access_key={SECRETS['aws secret']}",
        SECRETS["openai"],
        SECRETS["aws key"],
    ]
    page = tmp_path / "page.html"
    command = doctor(tmp_path, "--html", str(page), "--standalone", str(script), *arguments)
    ended = finish(
        start(command, tmp_path, tmp_path, env=environ(tmp_path, **variables)),
        tmp_path,
    )
    assert ended.code == 1
    report = tmp_path / "run" / "report.json"
    ours = ended.stderr.decode("utf-8", "replace").rpartition("\nddpdoctor ")[2]
    assert re.search(r"ERR00\d", ours), ours
    texts = {
        "report.json": report.read_text(),
        "report.html": report.with_suffix(".html").read_text(),
        "--html": page.read_text(),
        "terminal": ours,
    }
    leaked = [
        f"{name} in {where}"
        for where, text in texts.items()
        for name, secret in SECRETS.items()
        if secret in text
    ]
    assert leaked == []
    assert sys.executable.rpartition("/")[2] in texts["report.json"]  # command lines themselves are kept
