#!/bin/sh
# Everything that a real GPU has to show, in one go: tests, sanitizers, speed; a summary at the end.
# Usage: tools/gpu_check.sh OUT [tests|sanitizers|speed|bench ...]   (default: the first three)
# Runs with .venv's python, or else python3, into which rocmforge is installed here; needs no network.
# bench runs the suites' GPU part, of a clone with its .git, and needs the extra `bench`.
# Environment: COMMIT, the hash to record; PYTHON, another interpreter; JOBS, processes of the tests
# (those of the GPU share one); BENCH, the suites whose benchmarks of the device 'gpu' are run
# (default: all). Each is kept when it ends.
set -u
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
    echo 'usage: tools/gpu_check.sh OUT [tests|sanitizers|speed|bench ...]' >&2
    exit 2
fi
out=$1
shift
parts=${*:-tests sanitizers speed}
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
mkdir -p "$out"
summary=$out/summary.txt
: >"$summary"
failed=0

step() { # NAME LOG COMMAND…: run, keep the log, note the verdict and the time
    name=$1 log=$out/$2
    shift 2
    begin=$(date +%s)
    if "$@" >"$log" 2>&1; then verdict=ok; else verdict=FAILED failed=1; fi
    printf '%-34s %-7s %4d s  %s\n' "$name" "$verdict" $(($(date +%s) - begin)) \
        "$(grep -E 'passed|failed|SUMMARY' "$log" | tail -n 2 | tr '\n' ' ' | cut -c 1-160)" | tee -a "$summary"
}

step install install.log "$python" -m pip install -q --no-index --no-build-isolation --no-deps -e .
if [ $failed != 0 ]; then
    echo "gpu_check: rocmforge cannot be installed into $python: see $out/install.log" >&2
    exit 2
fi
kind=$("$python" -c 'from rocmforge.devices import default_device; print(default_device("auto").kind)')
if [ "$kind" != hip ] && [ "$kind" != cuda ]; then
    echo "gpu_check: no GPU here that the kernels run on: $python -m rocmforge devices says why" >&2
    exit 2
fi

for part in $parts; do
    case $part in
    tests)
        step 'tests on the GPU' tests.log "$python" -m pytest -q -s -p no:cacheprovider -m gpu ${JOBS:+-n "$JOBS"}
        ;;
    sanitizers)
        if [ "$kind" = hip ]; then
            echo 'compute-sanitizer: n/a on AMD (make test-sanitizer runs the stand-in)' | tee -a "$summary"
            continue
        fi
        # The kernels' own tests, at their awkward shapes, and whole models.
        for tool in memcheck racecheck initcheck; do
            quiet=
            # A test asks for more memory than there is: that call's error is no fault.
            if [ $tool = memcheck ]; then quiet='--report-api-errors no'; fi
            step "compute-sanitizer $tool" "$tool.log" compute-sanitizer --tool "$tool" \
                --target-processes all --error-exitcode 1 $quiet \
                "$python" -m pytest -q -p no:cacheprovider -m gpu tests/gpu/test_*_kernel.py \
                tests/gpu/test_backend.py tests/gpu/test_engine_on_gpu.py
        done
        ;;
    speed)
        step 'speed' speed.log "$python" tools/gpu_speed.py --device "$kind" \
            --json "$out/speed.json" ${COMMIT:+--commit "$COMMIT"}
        cat "$out/speed.log"
        ;;
    bench)
        for suite in ${BENCH:-attention dequantize first_token fusion inference matmul memory quality roofline rows startup steps}; do
            step "benchmarks: $suite" "bench-$suite.log" "$python" -m rocmforge bench run --bench "^$suite\\..*'gpu'"
            tar -czf "$out/asv.part" .asv/results && mv "$out/asv.part" "$out/asv.tar.gz"
        done
        ;;
    *)
        echo "gpu_check: got $part, wanted tests, sanitizers, speed or bench" >&2
        exit 2
        ;;
    esac
done
cat "$summary"
exit $failed
