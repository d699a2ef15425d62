# Runs a command in a control group (v1) of its own with a limit of memory: limit.sh LIMIT COMMAND...
group=/sys/fs/cgroup/memory/ddpdoctor-fault-$$
mkdir "$group" || exit 99
echo "$1" >"$group/memory.limit_in_bytes"
shift
sh -c 'echo $$ >"$0/tasks"; exec "$@"' "$group" "$@"
code=$?
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rmdir "$group" 2>/dev/null && break
    sleep 0.3
done
exit $code
