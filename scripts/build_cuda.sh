#!/usr/bin/env bash
# Builds what runs on NVIDIA GPUs: the worker `searchmill-worker-cuda` and the bench `device`. No GPU and no driver are needed.
#
#   scripts/build_cuda.sh check     # only type-check (`make cuda-check`)
#   scripts/build_cuda.sh           # build, into target/release
#
# CUDA_HOME: a CUDA toolkit (13.0 is what this is built with); by default where `nvcc` on PATH is. Without a toolkit:
#   scripts/build_cuda.sh toolkit FOLDER    # nvcc, cuBLAS, … from PyPI (1.2 GB), with what the wheels lack
#   CUDA_HOME=FOLDER/cuda scripts/build_cuda.sh
# CUDA_COMPUTE_CAP: the GPU family, 90 for H100 and H200 (default), 80 for A100, 89 for L4 and 4090. A build serves one.
set -eu
cd "$(dirname "$0")/.."

toolkit() {
  local folder=$1 cuda symbols
  python3 -m venv "$folder/venv"
  # The last two are pinned: left alone, pip takes versions that do not fit this nvcc.
  "$folder/venv/bin/pip" install -q "cuda-toolkit[nvcc,cudart,cublas,curand,nvrtc,cccl]==13.0.2" \
    "nvidia-cuda-crt==13.0.88" "nvidia-nvvm==13.0.88"
  cuda=$(echo "$PWD/$folder"/venv/lib/python3*/site-packages/nvidia/cu13)
  [ -d "$cuda" ] || cuda=$(echo "$folder"/venv/lib/python3*/site-packages/nvidia/cu13)
  ln -sfn "$cuda" "$folder/cuda"
  # Wheels have libX.so.N alone, no lib64, and no libcuda: that is the driver's. To link, its names are enough.
  (cd "$cuda/lib" && for name in cublas cublasLt cudart curand nvrtc; do
    ln -sf "$(ls lib$name.so.* | grep -v alt | head -1)" "lib$name.so"
  done)
  ln -sfn lib "$cuda/lib64"
  mkdir -p "$cuda/lib/stubs"
  cargo fetch --locked
  symbols=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/cudarc-0.19.*/src/driver/sys/mod.rs | tail -1)
  grep -hoE 'fn (cu[A-Z][A-Za-z0-9_]*)\(' "$symbols" | tr -d '(' | awk '{print $2}' | sort -u |
    awk '{print "int "$1"(void){return 999;}"}' >"$folder/stub.c"
  cc -shared -fPIC -w -o "$cuda/lib/stubs/libcuda.so" -Wl,-soname,libcuda.so.1 "$folder/stub.c"
  echo "build_cuda: CUDA_HOME=$folder/cuda"
}

if [ "${1:-}" = toolkit ]; then
  toolkit "${2:?a folder for the toolkit}"
  exit
fi

if [ -z "${CUDA_HOME:-}" ]; then
  nvcc=$(command -v nvcc || true)
  if [ -z "$nvcc" ]; then
    echo "build_cuda: there is no nvcc: set CUDA_HOME to a CUDA toolkit, or make one with: scripts/build_cuda.sh toolkit FOLDER" >&2
    exit 2
  fi
  CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
fi
[ -x "$CUDA_HOME/bin/nvcc" ] || { echo "build_cuda: CUDA_HOME=$CUDA_HOME has no bin/nvcc" >&2; exit 2; }
export CUDA_HOME PATH="$CUDA_HOME/bin:$PATH" CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-90}"
# To link without a driver.
export LIBRARY_PATH="$CUDA_HOME/lib64:$CUDA_HOME/lib64/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}"

if [ "${1:-}" = check ]; then
  cargo check --locked --features cuda --bin searchmill-worker-cuda
else
  cargo build --locked --release --features cuda --bin searchmill-worker-cuda
  cargo build --locked --release -p searchmill-operators --features cuda --bench device
fi
