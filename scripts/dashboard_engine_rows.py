"""The rows of Grafana's dashboard below the stages: channels, engines, decoders and GPUs."""

from dashboard_panels import (
    SERVER,
    Panel,
    Query,
    Row,
    legend_of,
    mean,
    now,
    ours,
    per_second,
    sizes,
    times,
)

REPLICA = "instance, stage, replica"
CHANNEL = "source, target, channel"

CHANNELS = Row(
    "Channels",
    (
        Panel(
            "Chunks per second",
            "Chunks that were sent and received on each channel between processes.",
            "none",
            [
                per_second(ours("channel_chunks_total"), CHANNEL, "sent"),
                per_second(ours("channel_received_chunks_total"), CHANNEL, "received"),
            ],
        ),
        Panel(
            "Bytes per second",
            "Bytes of these chunks with their headers.",
            "Bps",
            [per_second(ours("channel_bytes_total"), CHANNEL)],
        ),
        Panel(
            "Wait of a chunk",
            "Mean time from sending to receiving. It grows when the receiver is busy.",
            "s",
            [
                mean(
                    ours("channel_wait_seconds_total"),
                    ours("channel_received_chunks_total"),
                    CHANNEL,
                )
            ],
        ),
        Panel(
            "Waits for credit or room",
            "Seconds that chunks wait per second because the receiver is behind.",
            "none",
            [per_second(ours("channel_backlog_seconds_total"), CHANNEL)],
        ),
        Panel(
            "Chunks that wait for credit or room",
            "Above 0 for long: the receiver is too slow for the sender.",
            "none",
            [now(ours("channel_backlog_chunks"), f"instance, {CHANNEL}")],
        ),
        Panel(
            "Rings in use",
            "Share of each ring in shared memory that is not received yet.",
            "percentunit",
            [
                Query(
                    f"{ours('ring_used_bytes')}{{{SERVER}}} / "
                    f"{ours('ring_size_bytes')}{{{SERVER}}}",
                    legend_of(f"instance, {CHANNEL}"),
                )
            ],
        ),
        Panel(
            "Keys and values on edges",
            "Bytes of prompts' cached keys and values that a stage sends, or has taken: at most "
            "its option kv_gib there.",
            "bytes",
            [now(ours("stage_kv_bytes"), REPLICA)],
        ),
    ),
)

ENGINES = Row(
    "Engines of vLLM",
    (
        Panel(
            "Requests in the engines",
            "Requests in a step, and requests in vLLM's queue.",
            "none",
            [
                now("vllm:num_requests_running", REPLICA, "running"),
                now("vllm:num_requests_waiting", REPLICA, "waiting"),
            ],
        ),
        Panel(
            "KV cache in use",
            "Near 100 %: requests are preempted, or wait.",
            "percentunit",
            [now("vllm:kv_cache_usage_perc", REPLICA)],
        ),
        Panel(
            "Tokens of the engines per second",
            "Tokens of prompts and sampled tokens; the talker's are codec frames.",
            "none",
            [
                per_second("vllm:prompt_tokens_total", "stage", "in"),
                per_second("vllm:generation_tokens_total", "stage", "out"),
            ],
        ),
        times(
            "Wait in the queue",
            "A request's time in vLLM's queue.",
            "vllm:request_queue_time_seconds",
            "stage",
        ),
        times(
            "Prefill",
            "From the first step of a request to its first token.",
            "vllm:request_prefill_time_seconds",
            "stage",
        ),
        times(
            "Between tokens",
            "The time between two tokens of a request; the talker has 80 ms per frame to keep up.",
            "vllm:inter_token_latency_seconds",
            "stage",
        ),
    ),
)

DECODERS = Row(
    "Diffusion and vocoders",
    (
        times(
            "Time per image",
            "Time of a finished call of the pipeline over its images; a video counts as one.",
            ours("image_seconds"),
            "stage",
        ),
        times(
            "Until the first step",
            "The prompt's encoding, the wait for a turn, and the first denoising step.",
            ours("first_step_seconds"),
            "stage",
        ),
        sizes("Steps per image", "Denoising steps of finished calls.", ours("image_steps")),
        sizes(
            "Requests per denoising step",
            "Requests that share a forward of the denoiser.",
            ours("denoising_batch_requests"),
        ),
        sizes(
            "Requests per call of the side lane",
            "Requests that share a call of an encoder or a decoder.",
            ours("side_lane_batch_requests"),
        ),
        Panel(
            "Embedding cache",
            "Calls of text encoders that the cache answered, and calls that it did not.",
            "none",
            [
                per_second(ours("embedding_cache_hits_total"), "stage", "hits"),
                per_second(ours("embedding_cache_misses_total"), "stage", "misses"),
            ],
        ),
        Panel(
            "Size of the embedding cache",
            "Bytes that the cache holds.",
            "bytes",
            [now(ours("embedding_cache_bytes"), REPLICA)],
        ),
        times(
            "Time per decode",
            "Time of a vocoder's decode of one batch.",
            ours("decode_seconds"),
            "stage",
        ),
        times(
            "Wait for a decode",
            "From a chunk's arrival at a vocoder to its decode.",
            ours("decode_wait_seconds"),
            "stage",
        ),
        sizes(
            "Requests per decode",
            "Requests that share a vocoder's decode.",
            ours("decoder_batch_requests"),
        ),
        Panel(
            "Frames per second",
            "Codec frames that vocoders decoded.",
            "none",
            [per_second(ours("decoded_frames_total"), "stage")],
        ),
    ),
)

GPUS = Row(
    "GPUs",
    (
        Panel(
            "Memory in use",
            "Memory of the GPUs of each stage, whoever uses it, and their size.",
            "bytes",
            [
                now(ours("gpu_memory_used_bytes"), "instance, gpu, stage, replica"),
                now(ours("gpu_memory_size_bytes"), "instance, gpu, stage, replica", "of"),
            ],
        ),
        Panel(
            "Use",
            "Share of the last moments in which a kernel ran.",
            "percentunit",
            [now(ours("gpu_utilization_ratio"), "instance, gpu, stage, replica")],
        ),
    ),
)
