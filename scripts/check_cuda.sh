#!/usr/bin/env bash
# Checks models on a GPU beside the CPU, then times them: JSON lines on standard output. Builds nothing.
#
#   scripts/check_cuda.sh [--tiny] [--cpu] [--peak-tflops T] [--peak-gbs B]
#
# Needs the bench `device`, built with `--features cuda` for this GPU (scripts/build_cuda.sh), in DEVICE_BENCH or below
# target/release/deps, and the CUDA libraries that it was linked with on LD_LIBRARY_PATH. `--cpu` runs the same code without
# a GPU, `--tiny` at a small size.
set -eu
cd "$(dirname "$0")/.."

newest() { ls -t "$@" 2>/dev/null | grep -v '\.d$' | head -1; }
bench=${DEVICE_BENCH:-$(newest target/release/deps/device-* target/debug/deps/device-* || true)}
if [ -z "$bench" ] || [ ! -x "$bench" ]; then
  echo "check_cuda: there is no bench: build it with scripts/build_cuda.sh, or name it in DEVICE_BENCH" >&2
  exit 2
fi

case " $* " in
  *" --cpu "*) ;;
  *)
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv >&2; then
      echo "check_cuda: nvidia-smi finds no GPU (give --cpu to run without one)" >&2
      exit 3
    fi
    if missing=$(ldd "$bench" | grep 'not found'); then
      printf 'check_cuda: %s lacks libraries:\n%s\nput their folders on LD_LIBRARY_PATH\n' "$bench" "$missing" >&2
      exit 3
    fi ;;
esac
exec "$bench" "$@"
