echo "rank $RANK of $WORLD_SIZE"
python "$@"
