# Thin on purpose: what each target does stands in scripts/.
.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test lint format bench soak rubies clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install what is needed and build everything here (quick when done)
	@scripts/setup.sh

setup-test: ## the same, with the tools that the tests and linters use
	@scripts/setup.sh --test

demo: setup ## start the example shop and look into it
	@scripts/demo.sh

test: setup-test ## run the tests of all three languages (RUBIES=all: in every Ruby)
	@scripts/test.sh

lint: setup-test ## ruff, mypy, rubocop, C with -Werror, shellcheck
	@scripts/lint.sh

format: setup-test ## let ruff format the Python code
	@.venv/bin/ruff format tracer tests

bench: setup-test ## measure, and print the table of docs/performance.md
	@scripts/bench.sh

soak: setup-test ## the full counts of the tests that `make test` runs a twentieth of
	@scripts/soak.sh

rubies: ## build chroots of Debian's Rubies, outside this checkout
	@scripts/rubies.sh build

clean: ## remove everything that was built here
	@scripts/clean.sh
