#!/bin/sh
# Check the kernels for memory errors and races with NVIDIA's compute-sanitizer. Needs a GPU and the CUDA toolkit.
#
#     benchmarks/sanitize.sh [kernels] [graphs] [step]      all three by default; about an hour on one GPU
#
# kernels  tests of the kernels, with one allocation per tensor, so that any access outside a tensor is an error
# graphs   tests of captured steps, with a check that the inputs of a graph are alive at every replay
# step     `python -m benchmarks step --shape elasticity` in all precisions, compiled and captured in one process
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
SANITIZER=${SANITIZER:-compute-sanitizer}
OPTIONS="--target-processes all --error-exitcode 1 --print-limit 20 --launch-timeout 0"
export TORCH_SHOW_CPP_STACKTRACES=1 TORCHINDUCTOR_COMPILE_THREADS=1

kernels() {
    tests="tests/ops/test_kernels.py tests/models/test_half_precision.py tests/training/test_flat_adam.py"
    # Disable PyTorch's caching allocator: one allocation per tensor. Captures need the cache.
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 $SANITIZER --tool memcheck $OPTIONS "$PYTHON" -m pytest -q -x $tests
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 $SANITIZER --tool initcheck $OPTIONS "$PYTHON" -m pytest -q -x \
        tests/ops/test_kernels.py
    $SANITIZER --tool racecheck --racecheck-report all $OPTIONS "$PYTHON" -m pytest -q -x tests/ops/test_kernels.py
    $SANITIZER --tool synccheck $OPTIONS "$PYTHON" -m pytest -q -x tests/ops/test_kernels.py
}

graphs() {
    LINEARNO_CHECK_CAPTURES=1 $SANITIZER --tool memcheck $OPTIONS "$PYTHON" -m pytest -q -x -m gpu \
        tests/benchmarks/test_bench_cuda.py tests/training/test_fit_cuda.py tests/inference/test_stream_cuda.py
}

step() {
    for tool in memcheck racecheck; do
        $SANITIZER --tool $tool $OPTIONS "$PYTHON" -m benchmarks step --shape elasticity --repeats 2
    done
}

for part in ${*:-kernels graphs step}; do
    "$part"
done
