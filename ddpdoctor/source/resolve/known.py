"""What is known of other people's packages: functions that make no collective."""

from __future__ import annotations

import builtins
import sys

KNOWN_ROOTS = frozenset({*sys.stdlib_module_names, *dir(builtins), "torch", "numpy", "np", "tqdm", "wandb",
                         "accelerate", "torchvision", "transformers", "datasets", "yaml", "torchaudio", "torchtext",
                         "PIL", "cv2", "pandas", "scipy", "sklearn", "skimage", "matplotlib", "imageio", "h5py",
                         "lmdb", "pyarrow", "einops", "tokenizers", "sentencepiece", "safetensors", "soundfile",
                         "librosa", "requests", "psutil", "rich", "tensorboard", "tensorboardX", "gym",
                         "gymnasium"})  # fmt: skip
"""Packages whose functions make no collective of the user's groups unless `name_collective` knows it."""
QUIET = frozenset("""PIL absl albumentations apex attr attrs av boto3 braceexpand click clip colorama cv2 dateutil
    easydict einops filelock ftfy fsspec gdown h5py huggingface_hub imageio imgaug jinja2 joblib jsonlines kornia
    librosa lmdb loguru lpips matplotlib mpl_toolkits mpi4py msgpack natsort nltk numba omegaconf opencv pandas
    packaging pickle5 plotly prettytable psutil pyarrow pycocotools pydantic regex requests rich sacrebleu sacremoses
    safetensors scipy seaborn sentencepiece shapely simplejson six skimage sklearn soundfile spacy submitit tabulate
    tensorboard tensorboardX tensorboard_logger termcolor thop tiktoken timm tokenizers toml torchaudio torchinfo
    torchmetrics torchsummary trimesh typing_extensions ujson unidecode webdataset xxhash yacs zmq Levenshtein
    jieba Cython cython setuptools pkg_resources distutils editdistance torchtext tensorflow fvcore iopath
    ruamel configargparse diffusers""".split())  # fmt: skip
"""Packages that make no group of processes and set no device when they are imported or called."""
SIZES = frozenset({"world", "world_size", "get_world_size", "num_processes", "nprocs"})
"""Names of the number of ranks."""
HARMLESS = frozenset("""append extend update add get items keys values pop join split strip format write flush close
    info debug warning warn error exception critical log print add_scalar add_scalars add_text item cpu detach numpy
    tolist to mean sum size numel state_dict set_postfix set_description set_epoch mkdir exists
    makedirs read readlines zero_grad empty_cache zero_ copy_ fill_ eval train
    contiguous clone view view_as reshape transpose permute flatten unflatten squeeze unsqueeze expand repeat chunk
    narrow t float half bfloat16 double long int bool type type_as cuda pin_memory is_contiguous dim ndimension
    abs exp log2 sqrt pow square neg max min argmax argmin norm softmax log_softmax sigmoid tanh relu
    clamp prod std var sort topk unbind roll tril triu nonzero masked_fill
    add_ sub_ mul_ div_ clamp_ mul div sub normal_ uniform_ requires_grad_ parameters named_parameters buffers
    named_buffers modules named_modules children named_children""".split())  # fmt: skip
"""Methods of whatever object that are no collectives: of containers, files, loggers, modules and tensors."""
