# Training, and an evaluation of the last checkpoint beside it.
torchrun --nproc-per-node 2 --master-port 29735 train.py &
torchrun --nproc-per-node 2 --master-port 29736 evaluate.py
wait
