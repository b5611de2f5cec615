# Targets only call the scripts in scripts/.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test test-all lint format docs bench soak rubies clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install what is needed and build everything here (quick when done)
	@scripts/setup.sh

setup-test: ## the same, with the tools that the tests and linters use
	@scripts/setup.sh --test

demo: setup ## start the example shop and profile it
	@scripts/demo.sh

test: setup-test ## run the tests of all three languages with this machine's Ruby
	@scripts/test.sh

test-all: setup-test ## the same, then all tests that need other Rubies (builds chroots)
	@scripts/test.sh --all

lint: setup-test ## ruff, mypy, rubocop, C with -Werror, shellcheck, English
	@scripts/lint.sh

format: setup-test ## format the Python code with ruff
	@.venv/bin/ruff format tracer tests

docs: setup-test ## build the documentation site in site/
	@scripts/docs.sh

bench: ## run the benchmarks, including a Rails request under load, and print the table
	@scripts/setup.sh --bench
	@scripts/bench.sh

soak: ## run full counts of tests that `make test` samples, and tests on other kernels
	@scripts/setup.sh --soak
	@scripts/soak.sh

rubies: ## build chroots of Debian's Rubies, outside this checkout
	@scripts/rubies.sh build

clean: ## remove everything built here
	@scripts/clean.sh
