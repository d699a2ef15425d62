# Training, and an evaluation of the last checkpoint beside it.
torchrun --nproc-per-node 2 --standalone train.py &
torchrun --nproc-per-node 2 --standalone evaluate.py
wait
