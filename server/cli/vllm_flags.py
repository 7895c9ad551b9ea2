"""Flags of vLLM and vllm-omni that this command line does not take, and what to use instead.

docs/migrating.md shows these rows, and a test compares. Arguments of vLLM's engine are read from
vLLM; of these only one that has no effect in any stage is here.
"""

from collections.abc import Mapping

from omnistage.stage_configs.engine_arguments import is_switch, vllm_arguments

Rows = tuple[tuple[tuple[str, ...], str], ...]

VLLM: Rows = (
    (("--tool-call-parser",), "use `--stage NAME.options.tool_parser=PARSER`"),
    (("--enable-auto-tool-choice",), "use `--stage NAME.options.enable_auto_tools=true`"),
    (("--reasoning-parser",), "use `--stage NAME.options.reasoning_parser=PARSER`"),
    (
        ("--chat-template",),
        "use `--stage NAME.options.chat_template=TEMPLATE`, with the template itself, not its file",
    ),
    (
        (
            "--chat-template-content-format",
            "--default-chat-template-kwargs",
            "--exclude-tools-when-tool-choice-none",
            "--tool-strict-level",
            "--trust-request-chat-template",
        ),
        "use `--stage NAME.options.KEY=VALUE`, with the flag's name as KEY, - as _",
    ),
    (("--allowed-local-media-path",), "use `--allowed-media-path`"),
    (("--max-num-queued-reqs",), "use `--max-queue`"),
    (("--uvicorn-log-level",), "use `--log-level`"),
    (
        ("--disable-uvicorn-access-log",),
        "use `--log-level warning`: then no request has a line",
    ),
    (
        ("--disable-access-log-for-endpoints",),
        "not needed: /health, /ready and /metrics have no line in the log",
    ),
    (("--config",), "a graph file in place of the model, and `OMNISTAGE_…` for the other options"),
    (
        ("--lora-modules",),
        "use `--stage NAME.options.lora_modules.ADAPTER=FOLDER`; later /admin/lora/add or vLLM's"
        " own requests, with `--admin-key`",
    ),
    (("--enable-request-id-headers",), "not needed: every answer has `x-request-id`"),
    (("--enable-prompt-tokens-details",), "not needed: every `usage` has them"),
    (("--sse-keep-alive-interval",), "not needed: a stream says something every 15 s"),
    (("--trust-request-mm-kwargs",), "not needed: the fields that are allowed are in docs/api.md"),
    (("--enable-per-request-metrics",), "not needed: requests ask by `return_timeline`"),
    (("--return-tokens-as-token-ids",), "not needed: requests ask by `return_token_ids`"),
    (("--enable-force-include-usage",), "not done: requests ask by `stream_options`"),
    (("--enable-server-load-tracking",), "not needed: /load and /metrics have the load"),
    (("--log-error-stack",), "not needed: tracebacks are in the log"),
    (
        ("--aggregate-engine-logging",),
        "not needed: vLLM's log of statistics is off; /metrics has them",
    ),
    (
        (
            "--ssl-ca-certs",
            "--ssl-cert-reqs",
            "--ssl-ciphers",
            "--enable-ssl-refresh",
            "--middleware",
            "--uds",
            "--h11-max-header-count",
            "--h11-max-incomplete-event-size",
        ),
        "not done: a proxy before the server",
    ),
    (
        (
            "--api-server-count",
            "--data-parallel-supervisor-port",
            "--dp-supervisor-probe-failure-threshold",
            "--dp-supervisor-probe-interval-s",
            "--dp-supervisor-probe-timeout-s",
            "--headless",
        ),
        "not done: one gateway, all stages on one machine; several servers behind a proxy",
    ),
    (
        ("--enable-log-outputs", "--enable-log-deltas", "--max-log-len"),
        "no prompt or answer is ever logged",
    ),
    (
        (
            "--anthropic-disabled-thinking-effort",
            "--cohere-format",
            "--cohere-is-reasoning-model",
            "--disable-fastapi-docs",
            "--enable-flash-late-interaction",
            "--enable-offline-docs",
            "--enable-scale-out",
            "--enable-tokenizer-info-endpoint",
            "--fingerprint-mode",
            "--fingerprint-value",
            "--grpc",
            "--grpc-port",
            "--response-role",
            "--tokens-only",
            "--tool-parser-plugin",
            "--tool-server",
        ),
        "not done",
    ),
)

OMNI: Rows = (
    (("--omni",), "not needed"),
    (
        ("--deploy-config", "--stage-configs-path"),
        "the graph file in place of the model, and `--model` if it names none",
    ),
    (("--stage-overrides",), "use `--stage NAME.KEY=VALUE`, once for each key"),
    (("--default-sampling-params",), "use `--set-default NAME.PARAMETER=VALUE`"),
    (("--init-timeout", "--stage-init-timeout"), "use `--set deadlines.start_s=SECONDS`"),
    (("--async-chunk",), "always; an edge's sizes: `--set edges.0.chunk.steady=25`"),
    (("--shm-threshold-bytes",), "not needed: all that goes along an edge is in shared memory"),
    (("--log-stats",), "not needed: /metrics"),
    (("--log-file",), "not done: the log goes to standard error"),
    (("--model-class-name",), "use `--stage NAME.pipeline_class=CLASS`"),
    (("--diffusion-load-format",), "use `--load-format`"),
    (("--enable-cpu-offload",), "use `--offload sequential`"),
    (("--enable-layerwise-offload",), "use `--offload layerwise`"),
    (("--diffusion-offload-config",), "use `--offload`"),
    (
        ("--cache-backend", "--cache-config"),
        "use `--stage NAME.step_cache=first_block` and `--stage NAME.step_cache_options={…}`",
    ),
    (("--max-generated-image-size",), "use `--stage NAME.max_megapixels=NUMBER`"),
    (("--diffusers-load-kwargs",), "not done"),
    (
        ("--diffusion-quantization-config",),
        "use `--stage NAME.quantization=fp8`, which has no further settings",
    ),
    (("--diffusion-attention-backend",), "use `--stage NAME.attention=native_cudnn`"),
    (("--diffusers-call-kwargs",), "not done: requests say it"),
    (("--lora-path", "--lora-backend", "--lora-scale"), "adapters are added by /admin"),
    (
        ("--enable-diffusion-pipeline-profiler", "--enable-ar-profiler", "--enable-orch-monitor"),
        "not needed: /metrics, `omnistage trace` and `--profile-folder`",
    ),
    (("--step-execution", "--request-batch-max-wait-ms"), "always: steps of requests are batched"),
    (("--cfg-parallel-size",), "use `--stage NAME.guidance_ranks=2`"),
    (("--ulysses-degree", "--usp"), "use `--stage NAME.parallel={ulysses: N}`"),
    (("--ring",), "use `--stage NAME.parallel={ring: N}`"),
    (("--num-gpus",), "the graph file's `gpus`"),
    (("--hsdp-shard-size", "--use-hsdp"), "use `--stage NAME.parallel={shard: N}`"),
    (
        ("--vae-patch-parallel-size",),
        "use `--stage NAME.parallel={vae: N}` beside `guidance_ranks`, `ulysses`, `ring`, `tensor`"
        " or `shard`",
    ),
    (("--vae-use-tiling",), "use `--stage NAME.vae_tiling=true`"),
    (
        ("--text-encoder-tp-size",),
        "not done: several GPUs share a denoiser and a VAE's tiles only",
    ),
    (
        (
            "--omni-dp-size-local",
            "--omni-heartbeat-timeout",
            "--omni-lb-policy",
            "--omni-master-address",
            "--omni-master-port",
            "--omni-replica-address",
            "--ray-address",
            "--stage-id",
            "--worker-backend",
        ),
        "not done: all stages are on one machine, and the server starts them",
    ),
    (
        ("--task-type", "--tts-max-instructions-length", "--forced-aligner"),
        "not done",
    ),
)

INSTEAD: Mapping[str, str] = {flag: answer for flags, answer in (*VLLM, *OMNI) for flag in flags}
SAME_SWITCHES = ("--allow-credentials",)  # of vLLM, and ours
LEAVE_OUT = "leave it out"
# vLLM's other names of arguments of its engine.
SHORT: Mapping[str, str] = {
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-ep": "enable_expert_parallel",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-sc": "speculative_config",
    "-tp": "tensor_parallel_size",
    "--device-memory-utilization": "gpu_memory_utilization",
}


def instead_of(flag: str, value: str = "") -> str:
    """What does here what a flag of vLLM or vllm-omni does there; empty if it is none of theirs."""
    name, _, below = flag.partition(".")
    dashed = f"--{name.removeprefix('--').replace('_', '-')}" if name.startswith("--") else name
    if dashed in INSTEAD:
        return INSTEAD[dashed].replace("`", "")
    argument = SHORT.get(dashed, dashed.removeprefix("--").replace("-", "_"))
    if argument in vllm_arguments():
        given = "true" if is_switch(argument) and not below else value or "VALUE"
        return f"use --stage NAME.{argument}{below and f'.{below}'}={given}"
    if argument.removeprefix("no_") in vllm_arguments():
        return f"use --stage NAME.{argument.removeprefix('no_')}=false"
    return LEAVE_OUT if dashed.replace("--no-", "--") in (*INSTEAD, *SAME_SWITCHES) else ""
