"""GET /metrics as Prometheus reads it."""

import json
import socket

import pytest
from support.gateway.metered import CHAT, PICTURES, SPEECH, SPOKEN, Server, change, chat_body


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_text_is_counted_and_timed(stream: bool, server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="finished", status="200"),
        change(1, "e2e_request_latency_seconds_count", endpoint=CHAT),
        change(1, "answers_total", modality="text", outcome="finished"),
        change(1, "time_to_first_token_seconds_count", modality="text"),
        change(5, "prompt_tokens_total", modality="text"),
        change(3, "generation_tokens_total", modality="text"),
        change(0, "time_to_first_audio_seconds_count", modality="text"),
    ):
        assert server.chat("words", stream=stream) == 200


@pytest.mark.parametrize(("words", "num_frames"), [("words", 5), ("short", 1), ("silent", 0)])
def test_sound_is_counted_in_seconds(words: str, num_frames: int, server: Server) -> None:
    has_sound = num_frames > 0
    with server.moves(
        change(num_frames * 480 / 24_000, "audio_seconds_total", modality="text+audio"),
        change(has_sound, "time_to_first_audio_seconds_count", modality="text+audio"),
        change(1, "time_to_first_token_seconds_count", modality="text+audio"),
    ):
        assert server.chat(words, **SPOKEN) == 200


def test_a_text_that_is_given_has_no_first_token(server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=SPEECH, outcome="finished", status="200"),
        change(1, "time_to_first_audio_seconds_count", modality="text+audio"),
        change(0, "time_to_first_token_seconds_count", modality="text+audio"),
    ):
        assert server.post(SPEECH, input="words") == 200


def test_what_is_refused_before_the_stages_is_no_answer(server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="refused", status="400"),
        change(0, "answers_total", modality="text", outcome="refused"),
        change(0, "e2e_request_latency_seconds_count", endpoint=CHAT),
    ):
        assert server.chat("words", temperature=9) == 400


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stage_refuses_is_refused(stream: bool, server: Server) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="refused", status="400"),
        change(1, "answers_total", modality="text", outcome="refused"),
    ):
        assert server.chat("refuse", stream=stream) == 400


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_a_failure_is_one_whatever_the_status_said_before(
    stream: bool, status: int, server: Server
) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="failed", status=str(status)),
        change(1, "answers_total", modality="text", outcome="failed"),
    ):
        assert server.chat("fail later", stream=stream) == status


@pytest.mark.parametrize(
    ("words", "stream", "status", "state"),
    [
        ("endless", False, "499", "running"),
        ("endless", True, "200", "running"),
        ("hang", False, "499", "waiting"),
        ("hang", True, "", "waiting"),
    ],
)
def test_a_request_runs_or_waits_until_its_client_hangs_up(
    words: str, stream: bool, status: str, state: str, server: Server
) -> None:
    with server.moves(
        change(1, "requests_total", endpoint=CHAT, outcome="cancelled", status=status),
        change(1, "answers_total", modality="text", outcome="cancelled"),
        change(0, "num_requests_running"),
        change(0, "num_requests_waiting"),
    ):
        body = json.dumps({**chat_body(words), "stream": stream})
        head = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        port = int(server.gateway.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            with server.moves(change(1, f"num_requests_{state}")):
                client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
            if status == "200":
                client.recv(1)


def test_pictures_are_counted_without_previews(images_server: Server) -> None:
    with images_server.moves(
        change(2, "pictures_total", modality="image"),
        change(2, "prompt_tokens_total", modality="image"),
        change(1, "requests_total", endpoint=PICTURES, outcome="finished", status="200"),
    ):
        more = {"n": 2, "stream": True, "partial_images": 2}
        assert images_server.post(PICTURES, prompt="a cat", **more) == 200


@pytest.mark.parametrize(("words", "num_packets"), [("words", 2), ("short", 1), ("silent", 0)])
def test_the_pace_of_an_answers_audio_is_counted(
    words: str, num_packets: int, server: Server
) -> None:
    modality = {"modality": "text+audio"}
    with server.moves(
        change(bool(num_packets), "real_time_factor_count", **modality),
        change(bool(num_packets), "audio_stall_seconds_count", **modality),
        change(max(0, num_packets - 1), "audio_gap_seconds_count", **modality),
        change(1, "request_wait_seconds_count", **modality),
    ):
        assert server.chat(words, **SPOKEN) == 200
