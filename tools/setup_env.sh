#!/bin/sh
# Creates or refreshes .venv: the package (editable, compiled), and packages for the machine's GPUs;
# with an extra (bench, test, check, docs) what that needs besides. Shows each step with its time, and the
# log of one that fails. Says plainly what the machine lacks.
# Called by the Makefile; usage: tools/setup_env.sh PYTHON [EXTRA]
set -eu
python=${1:-python3}
extra=${2:-}
log=.venv/setup.log

lacks() {
    printf 'rocmforge: %s\n' "$@" >&2
    exit 1
}

# From pip's log what it is at: a package, or ninja's "[3/57] Building CXX object …".
doing() {
    sed -n -e 's/^ *\(Collecting [^ ]*\).*/\1/p' -e 's/^ *\(Downloading\) .*\/\([^/]*\)$/\1 \2/p' \
        -e 's/^ *\(Downloading [^/]*\)$/\1/p' -e 's/^ *\(Installing collected\).*/\1 packages/p' \
        -e 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] .*ops_\([^.]*\)\.dir.*\/\([^/]*\)\.o$/\1 of \2: \4, \3/p;t' \
        -e 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] .*[ /]\([^/ .]*\)[^/ ]*$/\1 of \2: \3/p' "$log" | tail -n 1
}

# While a step runs: a line that changes on a terminal, elsewhere one every ten seconds.
watch() {
    next=10
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        seconds=$(($(date +%s) - start))
        line=$(printf '  %s, %d s: %s' "$1" "$seconds" "$(doing)" | cut -c1-78)
        if [ -t 1 ]; then
            printf '\r\033[K%s' "$line"
        elif [ $seconds -ge $next ]; then
            printf '%s\n' "$line"
            next=$((seconds + 10))
        fi
    done
}

step() {
    what=$1
    shift
    start=$(date +%s)
    watch "$what" &
    watcher=$!
    status=0
    "$@" >"$log" 2>&1 || status=$?
    kill $watcher
    wait $watcher 2>/dev/null || :
    [ ! -t 1 ] || printf '\r\033[K'
    if [ $status != 0 ]; then
        tail -n 60 "$log" >&2
        lacks "$what: failed after $(($(date +%s) - start)) s; all that it said is in $log"
    fi
    printf '  %s: %d s\n' "$what" $(($(date +%s) - start))
}

pip_install() {
    .venv/bin/python -m pip --disable-pip-version-check install --progress-bar off "$@"
}

if [ -n "$extra" ]; then
    if [ "$extra" = test ] && command -v chromium >/dev/null; then
        extra=test,browser
    fi
    echo "rocmforge: installing what 'make ${2}' needs"
    step "packages of the extra $extra" pip_install "rocmforge[$extra]"
    touch ".venv/ready-$2"
    exit
fi

command -v "$python" >/dev/null 2>&1 ||
    lacks "no '$python' on this machine: install Python 3.10 or newer, or name one: make PYTHON=python3.12 …"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    lacks "'$python' is Python $version, 3.10 or newer is needed: make PYTHON=python3.12 …"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    lacks "'$python' cannot make virtual environments: apt-get install python3-venv"
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    lacks "the headers of '$python' (Python.h) are missing: apt-get install python3-dev"
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null 2>&1 ||
    lacks "no C++ compiler ('$compiler'): apt-get install g++, or name one: make CXX=clang++ …"
echo 'int main() { return 0; }' | "$compiler" -std=c++20 -x c++ - -o /dev/null 2>/dev/null ||
    lacks "'$compiler' does not compile C++20: g++ 11 or newer does (apt-get install g++)"

if [ -x .venv/bin/python ]; then
    echo "rocmforge: building it anew in .venv, where sources changed"
else
    echo "rocmforge: creating .venv with Python $version and building; two to five minutes on two cores"
    "$python" -m venv .venv
fi
step "tools that build" pip_install \
    'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.24' 'ninja>=1.11'
step "CPU kernels and the package" pip_install -v --no-build-isolation -e .
gpu_packages=$(.venv/bin/python tools/install_gpu_packages.py --keep --list) || exit 1
if [ -n "$gpu_packages" ]; then
    (step "packages for this machine's GPU" .venv/bin/python tools/install_gpu_packages.py --keep) ||
        echo "rocmforge: going on without the GPU; 'rocmforge devices' says what it lacks" >&2
fi
touch .venv/ready
