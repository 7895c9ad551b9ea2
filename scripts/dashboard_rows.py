"""The rows of Grafana's dashboard: the panels of an operator first, then one row per room."""

from dashboard_engine_rows import CHANNELS, DECODERS, ENGINES, GPUS, REPLICA
from dashboard_panels import (
    Panel,
    Row,
    now,
    ours,
    per_second,
    quantiles,
    times,
    total,
)

OVERVIEW = Row(
    "Overview",
    (
        Panel(
            "Ready",
            "1: the stage takes requests. 0: it loads or restarts.",
            "none",
            [now(ours("stage_up"), REPLICA)],
            "stat",
            limit=1,
        ),
        Panel(
            "Queue",
            "Requests that wait for their first output, and for a seat of a stage. Above 0 for "
            "minutes: the server is full.",
            "none",
            [
                total(ours("num_requests_waiting"), "waiting in the server"),
                now(ours("stage_requests_waiting"), REPLICA, "waiting for a seat"),
            ],
        ),
        Panel(
            "First audio",
            "Time to the first audio. The line is the limit of the alert FirstAudioLate for p99.",
            "s",
            quantiles(ours("time_to_first_audio_seconds"), "instance"),
            limit=1,
        ),
        Panel(
            "Stalls",
            "How long a player had nothing to play, per answer. The line is the limit of the "
            "alert AudioStalls for p99.",
            "s",
            quantiles(ours("audio_stall_seconds"), "instance"),
            limit=0.1,
        ),
        Panel(
            "Refused and failed requests",
            "Refused: an error below 500, or a 503 of a server that is full. Failed: all other "
            "errors; look into the log.",
            "reqps",
            [
                per_second(
                    ours("requests_total"),
                    "outcome, status",
                    matching=', outcome=~"refused|failed"',
                )
            ],
        ),
        Panel(
            "Restarts and NaN steps",
            "Restarts of stages, and steps whose tokens mean nothing, since the server started. "
            "Both should stay at 0.",
            "none",
            [
                now(ours("stage_restarts_total"), REPLICA, "restarts"),
                now(ours("stage_nan_steps_total"), REPLICA, "NaN"),
            ],
        ),
    ),
)

REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Requests in the server",
            "Requests with an output, and requests that wait for their first.",
            "none",
            [
                total(ours("num_requests_running"), "with an output"),
                total(ours("num_requests_waiting"), "waiting for the first"),
            ],
        ),
        Panel(
            "Requests by outcome",
            "finished, cancelled by the client, failed or refused, with the HTTP status.",
            "reqps",
            [per_second(ours("requests_total"), "outcome, status")],
        ),
        Panel(
            "Requests by endpoint",
            "All requests to the API, however they ended.",
            "reqps",
            [per_second(ours("requests_total"), "endpoint")],
        ),
        Panel(
            "Answers of the stages",
            "Requests that reached the stages, by modality and outcome.",
            "reqps",
            [per_second(ours("answers_total"), "modality, outcome")],
        ),
        Panel(
            "Spoken answers",
            "Places for them within --max-first-sound, and those refused each second for want of "
            "one.",
            "none",
            [
                total(ours("spoken_places"), "places"),
                per_second(ours("spoken_refused_total"), "instance", "refused"),
            ],
        ),
        Panel(
            "Answers begun ahead",
            "Answers of sessions that began before a turn had ended: used, or made in vain.",
            "reqps",
            [per_second(ours("realtime_ahead_total"), "outcome")],
        ),
        times(
            "Whole answers",
            "From a request to the end of its answer, of answers that finished.",
            ours("e2e_request_latency_seconds"),
            "endpoint",
        ),
        times(
            "Wait before the stages",
            "Until the stages get a request; media are loaded meanwhile.",
            ours("request_wait_seconds"),
            "modality",
        ),
        Panel(
            "Tokens per second",
            "Tokens of prompts and of answers that finished.",
            "none",
            [
                per_second(ours("prompt_tokens_total"), "modality", "in"),
                per_second(ours("generation_tokens_total"), "modality", "out"),
            ],
        ),
    ),
)

MEDIA = Row(
    "Text, audio and images",
    (
        times(
            "Time to the first text",
            "TTFT, from when the stages get the request.",
            ours("time_to_first_token_seconds"),
            "modality",
        ),
        times(
            "Time to the first audio",
            "TTFP, from when the stages get the request.",
            ours("time_to_first_audio_seconds"),
            "modality",
        ),
        Panel(
            "Real-time factor",
            "Time to the last audio over the length of the audio. Above 1 players run dry.",
            "none",
            quantiles(ours("real_time_factor"), "modality"),
            limit=1,
        ),
        times(
            "Between packets of audio",
            "The pause between two packets of one answer.",
            ours("audio_gap_seconds"),
            "modality",
        ),
        times(
            "Stalls per answer",
            "How long a player that starts at the first packet has nothing to play.",
            ours("audio_stall_seconds"),
            "modality",
        ),
        Panel(
            "Audio and images per second",
            "Seconds of audio per second, that is, how many listeners the server feeds; and "
            "images without previews.",
            "none",
            [
                per_second(ours("audio_seconds_total"), "modality", "audio"),
                per_second(ours("pictures_total"), "modality", "images"),
            ],
        ),
    ),
)

STAGES = Row(
    "Stages",
    (
        Panel(
            "Requests in the stages",
            "Requests in each stage, and requests that wait because all its seats are taken.",
            "none",
            [
                now(ours("stage_requests_running"), REPLICA, "running"),
                now(ours("stage_requests_waiting"), REPLICA, "waiting for a seat"),
            ],
        ),
        Panel(
            "Requests per second",
            "Requests that each stage began.",
            "reqps",
            [per_second(ours("stage_requests_total"), "stage")],
        ),
        times(
            "Time in a stage",
            "From a request's arrival in the stage to its end there.",
            ours("stage_request_seconds"),
            "stage",
        ),
        Panel(
            "Age of the stages' metrics",
            "A stage reports once per second. Many seconds: it hangs, or is very busy.",
            "s",
            [now(ours("stage_metrics_age_seconds"), REPLICA)],
        ),
        Panel(
            "Memory",
            "Resident memory of each process on the host.",
            "bytes",
            [now("process_resident_memory_bytes", REPLICA)],
        ),
        Panel(
            "CPUs in use",
            "Cores that each stage uses, without its engine's process. A gateway at 1 is full.",
            "none",
            [per_second("process_cpu_seconds_total", "stage")],
        ),
    ),
)

ROWS = (OVERVIEW, REQUESTS, MEDIA, STAGES, CHANNELS, ENGINES, DECODERS, GPUS)
