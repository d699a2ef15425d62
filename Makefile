# Every target is one call of scripts/dev.sh, which does the same where there is no make.
.DEFAULT_GOAL := help
.PHONY: accuracy bench check evidence help lint matrix mutants setup test

check: ## test this machine with a small job of four ranks; writes ddpdoctor-report.html
	@sh scripts/dev.sh check $(ARGS)

test: ## linters, types, layers, and the tests with branch coverage (ARGS="-k name" goes to pytest)
	@sh scripts/dev.sh test $(ARGS)

lint: ## the linters, types and layers only
	@sh scripts/dev.sh lint

bench: ## measure the figures that benchmarks/README.md describes (ARGS="--only hello")
	@sh scripts/dev.sh bench $(ARGS)

accuracy: ## run the broken scripts of tests/faults under `run`, and the evidence below, write docs/accuracy.md (ARGS="--only DDP")
	@sh scripts/dev.sh accuracy $(ARGS)

evidence: ## analyze what NCCL jobs left behind in tests/evidence/nccl (ARGS="--half seen --verbose"; --markdown docs/accuracy.md)
	@sh scripts/dev.sh evidence $(ARGS)

mutants: ## put mistakes into code that others wrote, write the section of docs/accuracy.md (ARGS="--store DIR" has clones)
	@sh scripts/dev.sh mutants $(ARGS)

matrix: ## try every torch and Python in fresh environments, write docs/compatibility.md (ARGS="--only 2.4.1")
	@sh scripts/dev.sh matrix $(ARGS)

setup: ## only make .venv
	@sh scripts/dev.sh setup

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' Makefile
