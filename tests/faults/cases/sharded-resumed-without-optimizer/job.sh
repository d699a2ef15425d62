set -e
# The scheduler gives the job slices; each takes up where the last one stopped.
torchrun --standalone --nproc-per-node 2 train.py --until 10
torchrun --standalone --nproc-per-node 2 train.py --until 20
