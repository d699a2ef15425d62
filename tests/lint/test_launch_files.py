"""Rules of launch files: wrong ones with the line, and right ones that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.source.gather import read_sources
from tests.lint.judging import RULES, judge
from tests.lint.launches import lint_launch, marked, places, read_launch

ASKED = "#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node={tasks}\n#SBATCH --gres=gpu:{gpus}\n"
MEET = "--rdzv-backend=c10d --rdzv-endpoint=$head:29500"
TWO = ASKED.format(nodes=2, tasks=1, gpus=4)
ONE = ASKED.format(nodes=1, tasks=1, gpus=4)

WRONG = {
    "more processes than GPUs": ("BKD004", f"{ONE}torchrun --nproc-per-node=8 train.py  # here\n"),
    "a variable of the file": ("BKD004", f"{ONE}N=8\ntorchrun --nproc_per_node $N train.py  # here\n"),
    "an array of options": ("BKD004", f"{ONE}ARGS=(\n  --nproc_per_node 8\n  --nnodes 1\n)\ntorchrun ${{ARGS[@]}} train.py  # here\n"),
    "visible devices": ("BKD004", "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 4 train.py  # here\n"),
    "GPUs with a type": ("BKD004", "#!/bin/sh\n#SBATCH --gpus-per-node=a100:2\npython -m torch.distributed.run --nproc-per-node=4 train.py  # here\n"),
    "on a line of its own": ("BKD004", f"{ONE}srun torchrun \\\n    --standalone \\\n    --nproc-per-node=8 \\\n    train.py\n# line 7\n"),
    "a text given to bash": ("BKD004", f"{ONE}srun bash -c 'torchrun --standalone --nproc-per-node=8 train.py'  # here\n"),
    "srun starts several launchers": (
        "ENV020", f"{ASKED.format(nodes=2, tasks=4, gpus=4)}srun torchrun --nnodes=2 --nproc-per-node=4 {MEET} train.py  # here\n"),
    "tasks of the step": ("ENV020", f"{TWO}srun --ntasks-per-node=4 torchrun --nnodes=2 --nproc-per-node=4 {MEET} t.py  # here\n"),
    "all tasks": ("ENV020", f"#!/bin/sh\n#SBATCH -N 2\n#SBATCH -n 8\nsrun torchrun --nnodes=2 --nproc-per-node=4 {MEET} t.py  # here\n"),
    "each node trains alone": ("ENV020", f"{TWO}srun torchrun --nproc-per-node=4 train.py  # here\n"),
    "only the first node": ("ENV020", f"{TWO}torchrun --nnodes=1 --nproc-per-node=4 train.py  # here\n"),
    "first node alone": ("ENV020", f"{TWO}torchrun --nnodes=2 --nproc-per-node=4 {MEET} train.py  # here\n"),
    "number of Slurm": ("ENV020", f"{TWO}torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {MEET} train.py  # here\n"),
    "nodes that nobody asks for": ("ENV020", f"{TWO}srun torchrun --nnodes=4 --nproc-per-node=4 {MEET} train.py  # here\n"),
    "below the first command": ("ENV020", f"#!/bin/bash\nset -e\n#SBATCH --nodes=2  # here\nsrun torchrun --nnodes=2 {MEET} t.py\n"),
    "processes that cannot be split": (
        "ENV020", "accelerate launch --num_machines 2 --num_processes 7 --main_process_ip $head t.py  # here\n"),
    "two jobs on the default port": (
        "NET001", "torchrun --nproc-per-node=2 a.py &\ntorchrun --nproc-per-node=2 b.py  # here\n"),
    "two jobs on one port": (
        "NET001", "torchrun --master-port=29510 a.py &\ntorchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:29510 b.py &  # here\nwait\n"),
    "jobs of a loop": ("NET001", "for seed in 1 2 3; do\n  torchrun --nproc-per-node=2 a.py --seed $seed &  # here\ndone\nwait\n"),
    "nodes meet on themselves": ("NET003", "torchrun --nnodes=2 --node-rank=$RANK --master-addr=127.0.0.1 t.py  # here\n"),
    "nodes without an address": ("NET003", f"{TWO}srun torchrun --nnodes=2 --nproc-per-node=4 train.py  # here\n"),
    "a port above all": ("NET009", "torchrun --master-port 99999 t.py  # here\n"),
    "a privileged port": ("NET009", "accelerate launch --main_process_port=80 t.py  # here\n"),
    "a workaround": ("ENV013", "export NCCL_P2P_DISABLE=1  # here\ntorchrun --nproc-per-node=2 t.py\n"),
    "a workaround for nodes": ("ENV013", f"{TWO}export NCCL_IB_DISABLE=1  # here\nsrun torchrun --nnodes=2 {MEET} --nproc-per-node=4 t.py\n"),
    "a debug setting": ("ENV014", "CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node=2 t.py  # here\n"),
}  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize(("code", "text"), WRONG.values(), ids=WRONG)
def test_mistake_is_found_at_its_line(code: str, text: str) -> None:
    found = lint_launch(text)
    assert {each.code for each in found} == {code}
    assert [line for _, line in places(found)] == (marked(text) or [7])
    assert all(each.fix and each.severity in ("warning", "error") for each in found)


RIGHT = {
    "as many as there are": f"{ONE}torchrun --standalone --nproc-per-node=4 train.py\n",
    "all nodes": f"{TWO}srun torchrun --nnodes=2 --nproc-per-node=4 {MEET} train.py\n",
    "the nodes of Slurm": f"{TWO}srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {MEET} train.py\n",
    "what a variable runs on all nodes": f"{TWO}$RUN torchrun --nnodes=2 --nproc-per-node=4 {MEET} train.py\n",
    "another line reaches the nodes": f"{TWO}ssh $other /run.sh &\ntorchrun --nnodes=2 --nproc-per-node=4 {MEET} train.py\n",
    "a number that the caller gives": f"{ONE}N=$1\ntorchrun --nproc-per-node=$N train.py\n",
    "a number with a default": f"{ONE}N=${{N:-8}}\ntorchrun --nproc-per-node=$N train.py\n",
    "a number that a branch changes": f"{ONE}N=8\nif [ $A ]; then N=4; fi\ntorchrun --nproc-per-node=$N train.py\n",
    "a substitution": f"{ONE}N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc-per-node=$N train.py\n",
    "options that a variable may hold": f"{TWO}srun torchrun $ARGS train.py\n",
    "processes on the CPU": f"{ONE}accelerate launch --cpu --num_processes 8 --num_machines 1 train.py\n",
    "one task of a step": f"{ASKED.format(nodes=1, tasks=4, gpus=4)}srun --ntasks=1 torchrun --nproc-per-node=4 t.py\n",
    "tasks without a launcher": f"{ASKED.format(nodes=2, tasks=4, gpus=4)}srun python train.py\n",
    "one job per node on purpose": f"{TWO}for i in 0 1; do\n  srun -N1 -n1 torchrun --nproc-per-node=4 t.py &\ndone\nwait\n",
    "one job after the other": "torchrun --nproc-per-node=2 a.py\ntorchrun --nproc-per-node=2 b.py\n",
    "waits in between": "torchrun --nproc-per-node=2 a.py &\nwait\ntorchrun --nproc-per-node=2 b.py &\nwait\n",
    "ports of their own": "torchrun --master-port=29501 a.py &\ntorchrun --master-port=29502 b.py &\nwait\n",
    "ports that torchrun chooses": "torchrun --standalone a.py &\ntorchrun --standalone b.py &\nwait\n",
    "port by the round": "for i in 1 2; do\n  torchrun --master-port=2950$i a.py &\ndone\nwait\n",
    "on other hosts": "ssh a torchrun --nproc-per-node=2 a.py &\nssh b torchrun --nproc-per-node=2 b.py &\nwait\n",
    "two nodes tried on one host": (
        "torchrun --nnodes=2 --node-rank=0 --master-addr=127.0.0.1 t.py &\n"
        "torchrun --nnodes=2 --node-rank=1 --master-addr=127.0.0.1 t.py\n"
    ),
    "an elastic number of nodes": "torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 t.py\n",
    "given by the environment": "export PET_NNODES=2\nsrun torchrun --nnodes=2 t.py\n",
    "a workaround with its reason": (
        "# do not remove: peer-to-peer copies hang on this board\nexport NCCL_P2P_DISABLE=1\ntorchrun t.py\n"
    ),
    "a workaround in a branch": "if [ $BROKEN ]; then\n  export NCCL_P2P_DISABLE=1\nfi\ntorchrun t.py\n",
    "a workaround that is off": "export NCCL_P2P_DISABLE=0\ntorchrun t.py\n",
    "a workaround that is taken back": "export NCCL_P2P_DISABLE=1\nunset NCCL_P2P_DISABLE\ntorchrun t.py\n",
    "of several nodes where there is one": "export NCCL_IB_DISABLE=1\ntorchrun --nproc-per-node=2 t.py\n",
    "commented out": "# export NCCL_P2P_DISABLE=1\n# torchrun --master-port 99999 t.py\ntorchrun t.py\n",
    "a text that is printed": "echo torchrun --master-port 99999 t.py\ntorchrun t.py\n",
    "a document": "cat <<EOF > job.sh\ntorchrun --master-port 99999 t.py\nEOF\ntorchrun t.py\n",
    "parts of different kinds": "#SBATCH --nodes=2\n#SBATCH hetjob\n#SBATCH --nodes=4\nsrun torchrun --nproc-per-node=4 t.py\n",
}


@pytest.mark.right
@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_nothing_is_found_in_a_right_file(text: str) -> None:
    assert places(lint_launch(text)) == []


def test_fewer_processes_than_gpus_are_a_question() -> None:
    text = f"{ONE}torchrun --standalone --nproc-per-node=2 train.py\n"
    assert places(lint_launch(text)) == []
    assert places(lint_launch(text, questions=True)) == [("ENV020", 5)]


JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - name: pytorch
              env:
                - name: NCCL_P2P_DISABLE
                  value: "{off}"
              command: ["torchrun"]
              args:
                - --nproc-per-node={processes}
                - --nnodes={nodes}
                - train.py
              resources:
                limits:
                  nvidia.com/gpu: 4
"""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"off": 0, "processes": 4, "nodes": 2}, []),
        ({"off": 1, "processes": 4, "nodes": 2}, [("ENV013", 13)]),
        ({"off": 0, "processes": 8, "nodes": 2}, [("BKD004", 16)]),
        ({"off": 0, "processes": 4, "nodes": 3}, [("ENV020", 17)]),
    ],
)
def test_manifest_of_kubernetes(values: dict[str, int], expected: list[tuple[str, int]]) -> None:
    pytest.importorskip("yaml")
    assert places(lint_launch(JOB.format(**values), "job.yaml")) == expected


CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
gpu_ids: {ids}
main_process_ip: {ip}
num_machines: {machines}
num_processes: {processes}
"""
FITS = {"kind": "MULTI_GPU", "ids": "all", "ip": "10.0.0.1", "machines": 2, "processes": 8}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"processes": 7}, [("ENV020", 6)]),
        ({"ip": "localhost"}, [("NET003", 4)]),
        ({"ip": "localhost", "machines": 1}, []),
        ({"kind": "'NO'", "machines": 1}, [("ENV020", 6)]),
        ({"ids": "0,1", "machines": 1}, [("BKD004", 6)]),
    ],
)
def test_configuration_of_accelerate(change: dict[str, object], expected: list[tuple[str, int]]) -> None:
    pytest.importorskip("yaml")
    assert places(lint_launch(CONFIG.format(**FITS | change), "default.yaml")) == expected


PARSER = "import argparse\nimport torch.distributed as dist\nparser = argparse.ArgumentParser()\n{more}args = parser.parse_args()\ndist.init_process_group('gloo')\n"


def test_launcher_that_passes_an_option_which_the_script_does_not_have() -> None:
    text = "python -m torch.distributed.launch --nproc-per-node=2 train.py\n"
    alone = PARSER.format(more="")
    takes = PARSER.format(more="parser.add_argument('--local-rank', '--local_rank')\n")
    assert places(lint_launch(text, scripts={"train.py": alone})) == [("ENV007", 1)]
    assert places(lint_launch(text, scripts={"train.py": takes})) == []
    assert places(lint_launch(text)) == []
    assert (
        places(lint_launch(text.replace("launch -", "launch --use-env -"), scripts={"train.py": alone})) == []
    )


def test_launch_files_of_a_directory_are_read_beside_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "job.sbatch").write_text(f"{ONE}torchrun --nproc-per-node=8 train.py\n")
    (tmp_path / "setup.sh").write_text("pip install torch\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    (tmp_path / "launch").write_text("#!/usr/bin/env bash\ntorchrun --master-port 99999 t.py\n")
    rows = read_sources([str(tmp_path)], RULES)
    assert [Path(row.name).name for row in rows] == ["job.sbatch", "train.py"]
    assert places(judge(rows)) == [("BKD004", 5)]
    rows = read_sources([str(tmp_path / "launch"), str(tmp_path / "setup.sh")], RULES)
    assert [(Path(row.name).name, row.unrelated) for row in rows] == [("launch", False), ("setup.sh", True)]
    assert places(judge(rows)) == [("NET009", 2)]


def test_comment_suppresses_a_finding_of_its_line() -> None:
    text = "# ddpdoctor: ignore[ENV013] this board has no peer-to-peer copies\nexport NCCL_P2P_DISABLE=1\ntorchrun t.py\n"
    (comment,) = read_launch(text).ignores
    assert (comment.codes, comment.first, comment.last) == (("ENV013",), 2, 2)
    assert comment.reason == "this board has no peer-to-peer copies"


@pytest.mark.parametrize(
    "text",
    ["torchrun 'a\n", "torchrun $(a\n", "torchrun a |", "\0torchrun", "torchrun " + "(" * 500, "x=(torchrun"],
)
def test_text_that_is_no_shell_script_costs_nothing(text: str) -> None:
    assert lint_launch(text) == []


def test_manifest_that_is_none_is_named() -> None:
    pytest.importorskip("yaml")
    assert "line 2" in (read_launch("a: [torchrun\n", "job.yaml").problem or "")
    assert read_launch("a: {{ .Values.a }}: [torchrun\n", "job.yaml").unrelated, (
        "a template of Helm is none yet"
    )
