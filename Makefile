# Two commands: `make quickstart` sets up, builds and runs the main job; `make test` sets up and passes the tests.
.PHONY: quickstart test setup build wheel site lint fmt bench-engine cuda-check clean-store

quickstart: setup
	@echo "builds searchmill ($$(grep -c '^name' Cargo.lock) packages, 7 to 15 minutes on two cores), then runs it (4 to 9 minutes)"
	CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=80 cargo build --locked
	target/debug/searchmill quickstart

# Two tests a core: many of them wait, for a lease to run out, a schedule's tick or a server.
test: setup
	@rm -f target/skipped-tests
	SEARCHMILL_SKIPPED=$(CURDIR)/target/skipped-tests RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} scripts/with-temp-in-memory cargo test --locked --workspace --no-fail-fast
	@scripts/after-tests

# Everything a build needs beside Rust, a C/C++ compiler, make, git and python3: cmake and a BLAS, for Faiss.
setup:
	@scripts/setup

build: setup
	cargo build --locked

# One file for `pip install`: the program with all it needs.
wheel:
	@scripts/build-wheel

# The documentation as a site with search: target/site.
site:
	@"$$(scripts/setup-python)" scripts/build-site

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

bench-engine: build
	benches/engine.py

# Does the worker for GPUs compile? Needs nvcc (scripts/build_cuda.sh says how to get one), no GPU.
cuda-check: setup
	@scripts/build_cuda.sh check

clean-store:
	rm -rf .searchmill
