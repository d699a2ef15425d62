#!/bin/sh
# Sets the project up and runs it or its tests; `make check` and `make test` call this. Needs Python 3.11 and pip, no more.
#
#   sh scripts/dev.sh check [options of `ddpdoctor check`]   test this machine, write ddpdoctor-report.html
#   sh scripts/dev.sh test [options of pytest]               linters, types, layers, tests with branch coverage
#   sh scripts/dev.sh lint                                   the first three of these without the tests
#   sh scripts/dev.sh bench [options of benchmarks]          measure what benchmarks/README.md describes
#   sh scripts/dev.sh accuracy [--only TEXT]                 run the broken scripts of tests/faults, write docs/accuracy.md
#   sh scripts/dev.sh evidence [--only TEXT]                 analyze the incidents of tests/evidence/nccl, print the scores
#   sh scripts/dev.sh mutants [--store DIR]                  put mistakes into code that others wrote, write a section of docs/accuracy.md
#   sh scripts/dev.sh matrix [--only VERSION]                try every torch and Python, write docs/compatibility.md
#   sh scripts/dev.sh setup                                  only make .venv
#
# PYTHON=/path/to/python3.11 picks the interpreter, VENV=DIR the directory (default .venv). pip's own variables
# count: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gets the small torch without CUDA.
set -u

cd "$(dirname "$0")/.." || exit 3
VENV=${VENV:-.venv}
STAMP=$VENV/.installed-from

say() { printf '%s\n' "dev.sh: $*" >&2; }

die() {
    say "$*"
    exit 3
}

find_python() {
    for candidate in ${PYTHON:-python3.11 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 or newer found; name one: PYTHON=/path/to/python3.11 sh scripts/dev.sh"
}

# What the environment was made from: while these lines are the stamp's, there is nothing to install.
fingerprint() {
    cat "$@" | cksum
    pwd
    "$VENV/bin/python" -V 2>&1
}

make_venv() {
    python=$(find_python) || exit 3
    say "making $VENV with $("$python" -V 2>&1)"
    # Debian keeps ensurepip in a package of its own; the pip that is there can serve the new environment instead.
    "$python" -m venv --clear "$VENV" >/dev/null 2>&1 && return
    "$python" -m venv --clear --without-pip "$VENV" || die "could not make $VENV"
    "$python" -m pip --python "$VENV/bin/python" install -q pip || die "no pip for $VENV"
}

install() {
    "$VENV/bin/python" -m pip install -q -c constraints.txt "$@" || die "the installation failed; pip says why above"
}

setup() {
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
    [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint pyproject.toml constraints.txt)" ] && return
    rm -f "$STAMP"
    say "installing the development environment (once; torch is large)"
    # The build backend first, so that it is the constrained one as well.
    install hatchling editables
    install --no-build-isolation -e '.[dev]'
    fingerprint pyproject.toml constraints.txt >"$STAMP"
}

# Only the tests need the example plugins; without them `check` says nothing but what a user would see.
setup_plugins() {
    set -- plugins/*/pyproject.toml
    [ -e "$1" ] || return 0
    [ "$(cat "$STAMP-plugins" 2>/dev/null)" = "$(fingerprint "$@")" ] && return
    rm -f "$STAMP-plugins"
    for plugin in "$@"; do
        say "installing $(dirname "$plugin")"
        install --no-build-isolation -e "$(dirname "$plugin")"
    done
    fingerprint plugins/*/pyproject.toml >"$STAMP-plugins"
}

# Tests that need these, or what the next function installs, skip without them: nothing here may fail the run.
setup_frameworks() {
    [ "$(cat "$STAMP-frameworks" 2>/dev/null)" = "$(fingerprint pyproject.toml constraints.txt)" ] && return
    say "installing Accelerate, Lightning, transformers, and schemas of Kubernetes"
    if "$VENV/bin/python" -m pip install -q -c constraints.txt --no-build-isolation -e '.[frameworks]'; then
        fingerprint pyproject.toml constraints.txt >"$STAMP-frameworks"
    else
        say "the frameworks could not be installed; their tests are skipped"
    fi
    return 0
}

install_debian_packages() {
    missing=
    command -v ip >/dev/null 2>&1 && command -v tc >/dev/null 2>&1 || missing="$missing iproute2"
    command -v iptables >/dev/null 2>&1 || missing="$missing iptables"
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    # Both MPIs have an mpirun: the tests call mpirun.openmpi and mpirun.mpich.
    command -v mpirun.openmpi >/dev/null 2>&1 || missing="$missing openmpi-bin"
    command -v mpirun.mpich >/dev/null 2>&1 || missing="$missing mpich"
    command -v slurmctld >/dev/null 2>&1 || missing="$missing slurm-wlm"
    command -v munged >/dev/null 2>&1 || missing="$missing munge"
    # What Slurm's plugin for PMIx loads, and slurm-wlm does not bring.
    ldconfig -p 2>/dev/null | grep -q 'libpmix.so ' || missing="$missing libpmix-dev"
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "not installed:$missing; the tests that need them are skipped"
        return 0
    fi
    say "installing$missing"
    # shellcheck disable=SC2086  # a list of words
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
        >"$VENV/apt-get.log" 2>&1; then
        say "apt-get could not install$missing ($VENV/apt-get.log); the tests that need them are skipped"
    fi
    return 0
}

failed=
step() {
    name=$1
    shift
    say "$name"
    "$@" || failed="$failed $name,"
}

lint() {
    step "ruff check" "$VENV/bin/ruff" check
    step "ruff format" "$VENV/bin/ruff" format --check
    step "mypy --strict" "$VENV/bin/mypy"
    for plugin in plugins/*/src; do
        [ -d "$plugin" ] && MYPYPATH=$plugin step "mypy --strict $plugin" "$VENV/bin/mypy" "$plugin"
    done
    step "import-linter" "$VENV/bin/lint-imports" --no-logo
}

finish() {
    [ -z "$failed" ] && return 0
    say "failed:${failed%,}"
    return 1
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
    setup)
        setup
        setup_plugins
        ;;
    check)
        setup
        # No exec and no cd: the report lands in the root of the project.
        "$VENV/bin/ddpdoctor" check --nproc 4 --html ddpdoctor-report.html "$@"
        ;;
    bench)
        setup
        "$VENV/bin/python" -m benchmarks "$@"
        ;;
    accuracy)
        setup
        # A part of the cases is no page.
        if [ $# -gt 0 ]; then
            "$VENV/bin/python" -m tests.faults.accuracy "$@"
        else
            step cases "$VENV/bin/python" -m tests.faults.accuracy --skip sharded- --markdown docs/accuracy.md
            step sharded "$VENV/bin/python" -m tests.faults.accuracy --only sharded- --halves "Sharded training" \
                --markdown docs/accuracy.md
            step evidence "$VENV/bin/python" -m tests.evidence.score --markdown docs/accuracy.md
            finish
        fi
        ;;
    evidence)
        setup
        "$VENV/bin/python" -m tests.evidence.score "$@"
        ;;
    mutants)
        setup
        # A part of them is no page.
        case " $* " in *" --only "* | *" --source "* | *" --operator "*) ;; *) set -- "$@" --markdown docs/accuracy.md ;; esac
        "$VENV/bin/python" -m tests.mutants "$@"
        ;;
    matrix)
        setup
        "$VENV/bin/python" -m tests.matrix --page docs/compatibility.md "$@"
        ;;
    lint)
        setup
        setup_plugins
        lint
        finish
        ;;
    test)
        began=$(date +%s)
        setup
        setup_plugins
        setup_frameworks
        install_debian_packages
        lint
        # A part of the tests cannot cover what all of them do.
        [ $# -gt 0 ] && set -- --cov-fail-under=0 "$@"
        # Ranks and agents that tests start elsewhere write what they covered beside this file.
        export COVERAGE_FILE="$PWD/.coverage"
        # Most tests wait for processes that they have started: three at a time. `-n 0` is one after the other.
        step pytest "$VENV/bin/python" -m pytest -n 3 --dist worksteal --cov --cov-report=term:skip-covered "$@"
        # What the three write of themselves once everything has been put together.
        rm -f "$COVERAGE_FILE".*
        took=$(($(date +%s) - began))
        say "took $((took / 60)) min $((took % 60)) s, the installation included"
        finish
        ;;
    *)
        sed -n '2,/^set /s/^# \{0,1\}//p' scripts/dev.sh >&2
        exit 2
        ;;
esac
