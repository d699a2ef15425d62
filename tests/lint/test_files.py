"""Rules of files and checkpoints: wrong programs, and right ones beside them."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

START = "dist.init_process_group('nccl')\nrank = dist.get_rank()\nlocal_rank = int(os.environ['LOCAL_RANK'])\ntorch.cuda.set_device(local_rank)\n"
WRAPPED = START + "net = torch.nn.Linear(2, 2)\nmodel = DDP(net)\n"

WRONG = [
    ("CKP001", "error", START + "torch.save(state, 'model.pt')  # here\n"),
    ("CKP001", "error", START + "for epoch in range(3):\n    path = os.path.join(args.out, f'epoch{epoch}.pt')\n    torch.save(state, path)  # here\n"),
    ("CKP001", "error",
     """\
     class Trainer:
         def __init__(self, folder):
             dist.init_process_group("gloo")
             self.folder = folder
         def save(self, name):
             torch.save(self.state, self.folder + "/" + name)  # here
         def fit(self):
             self.save("last.pt")
     if __name__ == "__main__":
         Trainer("runs").fit()
     """),
    ("CKP001", "error", "class Keeper:\n    def __init__(self, path):\n        self.path = path\n    def save(self):\n        torch.save(1, self.path)  # here\n" + START + "Keeper(args.out).save()\n"),
    ("CKP001", "error", "class Keeper:\n    def __init__(self, folder):\n        self.folder = folder\n    def save(self, epoch):\n        torch.save(1, os.path.join(self.folder, f'{epoch}.pt'))  # here\n" + START + "keeper = Keeper('runs')\nfor epoch in range(3):\n    keeper.save(epoch)\n"),
    ("CKP001", "error", "class Keeper:\n    def __init__(self, folder):\n        self.folder = folder\n    @property\n    def latest(self):\n        return os.path.join(self.folder, 'latest.pt')\n    def save(self):\n        torch.save(1, self.latest)  # here\n" + START + "Keeper('runs').save()\n"),
    ("CKP001", "warning", START + "for step in range(100):\n    if step % 10 == 0:\n        torch.save(state, f'{step}.pt')  # here\n"),
    ("CKP001", "error", "def work(rank, n):\n    dist.init_process_group('gloo', rank=rank, world_size=n)\n    torch.save(state, 'x.pt')  # here\nif __name__ == '__main__':\n    mp.spawn(work, (2,), 2)\n"),
    ("CKP001", "warning", "import numpy as np\n" + START + "np.save('features.npy', features)  # here\n"),
    ("CKP001", "info", START + "with open('log.txt', 'w') as log:  # here\n    log.write('started')\n"),
    ("CKP002", "error", START + "if rank == 0:\n    torch.save(state, 'a.pt')\nstate = torch.load('a.pt', map_location='cpu')  # here\n"),
    ("CKP002", "error",
     """\
     def save(state, path):
         if dist.get_rank() == 0:
             torch.save(state, path)
     def load(path):
         return torch.load(path, map_location="cpu")  # here
     def main():
         dist.init_process_group("gloo")
         path = os.path.join("out", "a.pt")
         save({}, path)
         load(path)
     main()
     """),
    ("CKP002", "error", START + "if rank == 0:\n    torch.save(state, 'a.pt')\nelse:\n    state = torch.load('a.pt', 'cpu')  # here\ndist.barrier()\n"),
    ("CKP003", "warning", START + "model.load_state_dict(torch.load('a.pt'))  # here\n"),
    ("CKP003", "warning", START + "if args.gpus == 1 and rank != 0:\n    raise ValueError('one GPU')\nmodel.load_state_dict(torch.load('a.pt'))  # here\n"),
    ("CKP003", "warning", START + "state = torch.load(args.resume)  # here\nmodel.load_state_dict(state['model'])\n"),
    ("CKP003", "warning", START + "state = torch.load(args.resume)  # here\nparts = state['model']\nkept = {k: v for k, v in parts.items()}\nmodel.load_state_dict(kept, strict=False)\n"),
    ("CKP003", "warning", "def resume(model):\n    if os.path.isfile(args.resume):\n        saved = torch.load(args.resume, weights_only=True)  # here\n        model.load_state_dict(saved)\ndist.init_process_group(backend='nccl')\nresume(torch.nn.Linear(2, 2))\n"),
    ("CKP004", "error", WRAPPED + "if rank == 0:\n    torch.save(model.state_dict(), 'a.pt')\ndist.barrier()\nfresh = torch.nn.Linear(2, 2)\nfresh.load_state_dict(torch.load('a.pt', map_location='cpu'))  # here\n"),
    ("CKP004", "error", WRAPPED + "if rank == 0:\n    torch.save(model.state_dict(), 'a.pt')\ndist.barrier()\nfresh = torch.nn.Linear(2, 2)\nfresh.load_state_dict(torch.load('a.pt', map_location='cpu'), strict=False)  # here\n"),
    ("CKP004", "error", WRAPPED + "if rank == 0:\n    torch.save({'net': model.module.state_dict(), 'epoch': 1}, 'a.pt')\ndist.barrier()\nsaved = torch.load('a.pt', map_location='cpu')\nmodel.load_state_dict(saved['net'])  # here\n"),
    ("CKP004", "error",
     """\
     def load(model, path):
         state = torch.load(path, map_location="cpu")
         model.load_state_dict(state)  # here
     def main():
         dist.init_process_group("gloo")
         net = torch.nn.Linear(2, 2)
         load(net, "a.pt")
         net = DDP(net)
         if dist.get_rank() == 0:
             torch.save(net.state_dict(), "a.pt")
     main()
     """),
    ("CKP005", "warning", START + "os.makedirs('runs')  # here\n"),
    ("CKP005", "warning", START + "def name(folder):\n    box = [folder]\n    dist.broadcast_object_list(box, src=0)\n    return box[0]\n"
                          "os.makedirs(os.path.join('runs', name('a')))  # here\n"),
    ("CKP005", "warning", START + "if not os.path.exists(args.out):\n    os.mkdir(args.out)  # here\n"),
    ("CKP005", "warning", "from pathlib import Path\ndef main():\n    out = Path('runs') / 'a'\n    out.mkdir(parents=True)  # here\n    dist.init_process_group('gloo')\nmain()\n"),
    ("CKP005", "warning", START + "if os.path.exists('cache'):\n    shutil.rmtree('cache')  # here\n"),
    ("CKP005", "warning", "from pathlib import Path\n" + START + "def prepare(cfg, name):\n    name = os.path.basename(name).split('.')[0]\n    out = Path(cfg.out) / name\n    return 'train', str(out)\n"
                          "phase, out = prepare(args, args.config)\nshutil.copytree('models', os.path.join(out, 'models'))  # here\n"),
    ("CKP005", "warning", START + "if os.path.isfile('cache.bin'):\n    os.remove('cache.bin')  # here\n"),
    ("CKP005", "warning", "from pathlib import Path\n" + START + "stale = Path(args.out) / 'done.txt'\nif stale.exists():\n    stale.unlink()  # here\n"),
    ("CKP001", "warning", START + "scripted = torch.jit.script(net)\nscripted.save(os.path.join(args.out, 'init.zip'))  # here\n"),
    ("CKP001", "warning", START + "torch.onnx.export(net, batch, 'net.onnx')  # here\n"),
    ("CKP001", "warning", "from torchvision.utils import save_image\n" + START + "for epoch in range(9):\n    save_image(images, f'samples/{epoch}.png')  # here\n"),
    ("CKP001", "warning", "import matplotlib.pyplot as plt\n" + START + "plt.savefig(os.path.join(args.out, 'loss.png'))  # here\n"),
    ("CKP001", "warning", "from transformers import AutoModel\n" + START + "net = AutoModel.from_pretrained('base')\nnet.save_pretrained(args.out)  # here\n"),
    ("CKP001", "warning", "from transformers import AutoModel\n" + START + "net = AutoModel.from_pretrained('base')\nfor epoch in range(9):\n    net.save_pretrained(save_directory=os.path.join(args.out, str(epoch)))  # here\n"),
    ("CKP001", "warning", "import joblib\n" + START + "joblib.dump(features, 'features.bin')  # here\n"),
    ("DAT008", "warning", "import torchvision\n" + START + "data = torchvision.datasets.MNIST('data', download=True)  # here\n"),
    ("DAT008", "warning", "from torchvision import datasets\ndef loaders(root):\n    return datasets.CIFAR10(root, train=True, download=True)  # here\ndist.init_process_group('gloo')\nloaders('data')\n"),
    ("DAT008", "warning", "import urllib.request\n" + START + "if not os.path.exists('x.bin'):\n    urllib.request.urlretrieve(URL, 'x.bin')  # here\n"),
    ("DAT008", "warning", "import tarfile\n" + START + "with tarfile.open('data.tar') as archive:\n    archive.extractall('data')  # here\n"),
]  # fmt: skip


@pytest.mark.wrong
@pytest.mark.parametrize(("code", "severity", "text"), WRONG)
def test_wrong_program_is_found_at_its_line(code: str, severity: str, text: str) -> None:
    assert_found(text, code, severity)


RIGHT = [
    """\
    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        dist.init_process_group("nccl")
    for epoch in range(9):
        if ddp:
            if dist.get_rank() == 0:
                torch.save(state, "a.pt")
        else:
            torch.save(state, "a.pt")
    """,
    """\
    class Codebook(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.book = torch.zeros(8)
            if dist.is_available() and dist.is_initialized():
                dist.broadcast(self.book, 0)
    def convert(path):
        model = Codebook()
        torch.save(model.state_dict(), path)
    convert("model.pt")
    """,
    START + "if rank == 0:\n    torch.save(state, 'model.pt')\n",
    START + "if not args.distributed or dist.get_rank() == 0:\n    torch.save(state, 'model.pt')\n",
    START + "torch.save(state, f'model-{rank}.pt')\n",
    "from torchvision.utils import save_image\n" + START + "save_image(images, f'samples/{rank}.png')\nif rank == 0:\n    save_image(images, 'samples.png')\n",
    "import joblib\n" + START + "joblib.dump(features, buffer)\n",
    START + "if rank == 0:\n    net.save_pretrained(args.out)\n",
    START + "net.save_pretrained(args.out, is_main_process=rank == 0)\ntokenizer.save_pretrained(args.out)\n",
    START + "net.save_pretrained(args.out, save_function=accelerator.save)\n",
    START + "net.save_pretrained(args.out, **options)\n",
    START + "net.save_pretrained(f'{args.out}/{rank}')\n",
    "class Net:\n    def save_pretrained(self, folder):\n        if dist.get_rank() == 0:\n            torch.save(1, folder)\n" + START + "Net().save_pretrained(args.out)\n",
    START + "name = 'model-%d.pt' % dist.get_rank()\ntorch.save(state, name)\n",
    START + "torch.save(state, f'model.{os.getpid()}')\nos.replace(f'model.{os.getpid()}', 'model.pt')\n",
    "torch.save(state, 'model.pt')\n",
    "def save(state, path, main=True):\n    if main:\n        torch.save(state, path)\n" + START + "save(1, 'a.pt', main=rank == 0)\n",
    "def save(state, path):\n    torch.save(state, path)\n" + START + "if is_main_process():\n    save(1, 'a.pt')\n",
    "@rank_zero_only\ndef save(state):\n    torch.save(state, 'a.pt')\n" + START + "save(1)\n",
    "def save(state):\n    if dist.get_rank() != 0:\n        return\n    torch.save(state, 'a.pt')\n" + START + "save(1)\n",
    START + "for turn in range(dist.get_world_size()):\n    if turn == rank:\n        torch.save(state, 'a.pt')\n    dist.barrier()\n",
    START + "os.chdir(f'node{rank}')\ntorch.save(state, 'a.pt')\n",
    "import io\n" + START + "buffer = io.BytesIO()\ntorch.save(state, buffer)\n",
    "import tempfile\n" + START + "folder = tempfile.mkdtemp()\ntorch.save(state, os.path.join(folder, 'a.pt'))\n",
    "dist.init_process_group('gloo', rank=0, world_size=1)\ntorch.save(state, 'a.pt')\n",
    "class Keeper:\n    def __init__(self, path):\n        self.path = path\n    def save(self):\n        torch.save(1, self.path)\n" + START + "Keeper(f'{rank}.pt').save()\n",
    "class Keeper:\n    def __init__(self, path):\n        self.path = path\n    def save(self):\n        torch.save(1, self.path)\n" + START + "Keeper('a.pt')\nKeeper(f'{rank}.pt').save()\n",
    "def main():\n    train()\n    torch.save(state, 'a.pt')\nif __name__ == '__main__':\n    main()\n",
    START + "with open('log.txt', 'a') as log:\n    log.write('x')\n",
    START + "if rank == 0:\n    torch.save(state, 'a.pt')\ndist.barrier()\ntorch.load('a.pt', map_location='cpu')\n",
    START + "if rank == 0:\n    torch.save(state, 'a.pt')\n    torch.load('a.pt', map_location='cpu')\n",
    START + "if rank == 0:\n    torch.save(state, 'a.pt')\ntorch.load('b.pt', map_location='cpu')\n",
    START + "if rank == 0:\n    torch.save(state, 'a.pt')\nwait_for_all()\ntorch.load('a.pt', map_location='cpu')\n",
    "def save(path):\n    if dist.get_rank() == 0:\n        torch.save(1, path)\n" + START + "save('a.pt')\npath = 'b.pt'\ntorch.load(path, 'cpu')\n",
    START + "model.load_state_dict(torch.load('a.pt', map_location=f'cuda:{local_rank}'))\n",
    START + "model.load_state_dict(torch.load('a.pt', 'cpu'))\n",
    START + "features = torch.load('features.pt')\n",
    START + "model.load_state_dict(torch.load(f'pretrained/{args.name}.pt'))\n",
    START + "if rank == 0:\n    model.load_state_dict(torch.load('a.pt'))\n",
    "dist.init_process_group('gloo')\nmodel.load_state_dict(torch.load('a.pt'))\n",
    START + "os.environ['CUDA_VISIBLE_DEVICES'] = str(local_rank)\nmodel.load_state_dict(torch.load('a.pt'))\n",
    "model.cuda()\nmodel.load_state_dict(torch.load('a.pt'))\n",
    WRAPPED + "if rank == 0:\n    torch.save(model.module.state_dict(), 'a.pt')\ndist.barrier()\nfresh = torch.nn.Linear(2, 2)\nfresh.load_state_dict(torch.load('a.pt', map_location='cpu'))\n",
    WRAPPED + "if rank == 0:\n    torch.save(model.state_dict(), 'a.pt')\ndist.barrier()\nmodel.load_state_dict(torch.load('a.pt', map_location='cpu'))\n",
    WRAPPED + "if rank == 0:\n    torch.save(model.state_dict(), 'a.pt')\ndist.barrier()\nstate = torch.load('a.pt', map_location='cpu')\n"
    "state = {key.removeprefix('module.'): value for key, value in state.items()}\nnet.load_state_dict(state)\n",
    WRAPPED + "if rank == 0:\n    torch.save(model.state_dict(), 'a.pt')\ndist.barrier()\nnet.load_state_dict(torch.load('pretrained.pt', map_location='cpu'))\n",
    START + "os.makedirs('runs', exist_ok=True)\n",
    START + "if local_rank == 0:\n    os.makedirs('runs')\n",
    START + "try:\n    os.makedirs('runs')\nexcept FileExistsError:\n    pass\n",
    START + "os.makedirs(f'runs/{rank}')\n",
    START + "shutil.rmtree('cache', ignore_errors=True)\n",
    START + "shutil.copytree('models', 'out/models', dirs_exist_ok=True)\n",
    START + "def prepare(name):\n    return os.getpid(), f'{name}.{os.getpid()}'\nnumber, out = prepare('run')\nshutil.copytree('models', out)\n",
    START + "def prepare(name):\n    return name, f'{name}.{rank}'\nname, out = prepare('run')\nos.makedirs(out)\n",
    "from pathlib import Path\n" + START + "Path('done.txt').unlink(missing_ok=True)\n",
    START + "try:\n    os.remove('cache.bin')\nexcept OSError:\n    pass\n",
    START + "if os.path.exists('cache.bin') and local_rank == 0:\n    os.remove('cache.bin')\n",
    START + "os.remove(f'cache.{rank}')\n",
    "from multiprocessing import shared_memory\n" + START + "memory = shared_memory.SharedMemory(create=True, size=8)\nmemory.close()\nmemory.unlink()\n",
    "import tempfile\n" + START + "with tempfile.NamedTemporaryFile(delete=False) as file:\n    file.write(b'x')\nos.remove(file.name)\n",
    START + "net.save('net.bin')\n",
    START + "scripted = torch.jit.script(net)\nif rank == 0:\n    scripted.save('net.pt')\n",
    "import torchvision\n" + START + "if rank == 0:\n    torchvision.datasets.MNIST('data', download=True)\ndist.barrier()\ndata = torchvision.datasets.MNIST('data', download=True)\n",
    "import torchvision\n" + START + "if rank != 0:\n    dist.barrier()\ndata = torchvision.datasets.MNIST('data', download=True)\nif rank == 0:\n    dist.barrier()\n",
    "import torchvision\n" + START + "data = torchvision.datasets.MNIST('data', download=rank == 0)\n",
    "import torchvision\n" + START + "data = torchvision.datasets.MNIST(f'data{local_rank}', download=True)\n",
    "import torchvision\n" + START + "with main_process_first():\n    data = torchvision.datasets.MNIST('data', download=True)\n",
    "import torchvision\ndata = torchvision.datasets.MNIST('data', download=True)\n",
]  # fmt: skip


@pytest.mark.right
@pytest.mark.parametrize("text", RIGHT)
def test_right_program_gives_nothing(text: str) -> None:
    assert lint(text) == []
