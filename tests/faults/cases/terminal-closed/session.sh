# What a shell does to its jobs when the connection is closed.
torchrun --standalone --nproc-per-node 2 train.py --epochs 200 &
job=$!
while [ ! -e started ]; do sleep 0.1; done
kill -HUP $job
wait $job
