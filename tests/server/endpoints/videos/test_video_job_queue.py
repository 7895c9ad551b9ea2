"""Jobs of videos that are not there, refused, queued, deleted or lost with their stage."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import data_url, video_bytes
from support.gateway.serving import OMNI, STUDIO, RunningGateway, running_gateway
from support.gateway.video_jobs import SIZE, URL, client_of, create, done, job_of, when
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.server.options.bounds import VideoBounds
from omnistage.server.runtime.changes import Change
from omnistage.server.runtime.flight import Ticket
from omnistage.server.runtime.flights import Flights
from omnistage.server.runtime.stage_link import OwnedStage
from omnistage.stages.messages.to_gateway import Ready

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "characters"),
        ("GET", "characters/char_1"),
        ("GET", "nothing"),
        ("GET", "video_none"),
        ("DELETE", "video_none"),
        ("GET", "video_none/content"),
    ],
)
def test_what_is_not_there_is_a_404(method: str, path: str, client: httpx.Client) -> None:
    answer = client.request(method, f"{URL}/{path}", json={} if method == "POST" else None)
    assert answer.status_code == 404, answer.text
    is_video = path.startswith("video_")
    assert answer.json()["error"]["code"] == ("video_not_found" if is_video else None)


def test_a_job_that_cannot_be_is_refused_at_once(
    client: httpx.Client, studio: RunningGateway
) -> None:
    before = len(studio.stages.stages["studio"].opened)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"prompt": ""}, "prompt"),
        ({"size": "72x48"}, "size"),
        ({"size": "4096x4096"}, "num_frames"),
        ({"size": "1280x720", "seconds": "20"}, "seconds"),
        ({"seconds": "4", "num_frames": 9}, "seconds"),
        ({"input_reference": "data:image/png;base64,AAAA"}, "input_reference.image_url"),
        ({"model": "sora-2"}, "model"),
    ]
    for fields, param in refused:
        answer = client.post(URL, json={"prompt": "a cat", **fields})
        assert answer.status_code == (404 if param == "model" else 400), answer.text
        assert answer.json()["error"]["param"] == param
    assert client.get(URL).json()["data"] == []
    assert len(studio.stages.stages["studio"].opened) == before


def test_a_model_without_videos_says_so(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as omni, client_of(omni) as client:
        given = {"video": data_url("video/mp4", video_bytes(5, 16)), "seconds": "4"}
        for path, more in (("", {}), ("/sync", {}), ("/edits", given), ("/extensions", given)):
            answer = client.post(f"{URL}{path}", json={"prompt": "a cat", **more})
            assert answer.status_code == 400
            assert "makes no videos" in answer.json()["error"]["message"]
        assert client.get(URL).json()["data"] == []


def test_each_key_sees_its_own_jobs(tmp_path: Path) -> None:
    keys = Keys(["sk-ann", "sk-bob"])
    with (
        running_gateway(tmp_path, STUDIO, keys=keys) as guarded,
        client_of(guarded, "sk-ann") as ann,
        client_of(guarded, "sk-bob") as bob,
    ):
        job = done(ann, create(ann))
        place = f"{URL}/{job['id']}"
        assert [one["id"] for one in ann.get(URL).json()["data"]] == [job["id"]]
        assert bob.get(URL).json()["data"] == []
        for answer in (bob.get(place), bob.get(f"{place}/content"), bob.delete(place)):
            assert answer.status_code == 404
        assert ann.get(f"{place}/content").status_code == 200


def test_a_full_queue_is_a_429(tmp_path: Path) -> None:
    bounds = VideoBounds(max_queue=3, at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as full, client_of(full) as client:
        jobs = [create(client, prompt="hang") for _ in range(3)]
        answer = client.post(URL, json={"prompt": "a cat"})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("requests", "video_queue_full")
        statuses = [job_of(client, job)["status"] for job in jobs]
        assert statuses == ["in_progress", "queued", "queued"]
        client.delete(f"{URL}/{jobs[1]['id']}")
        assert client.post(URL, json={"prompt": "hang"}).status_code == 200


def test_a_video_is_read_on_while_it_is_deleted(client: httpx.Client) -> None:
    job = done(client, create(client, size=SIZE, num_frames=33))
    place = f"{URL}/{job['id']}"
    whole = client.get(f"{place}/content").content
    with client.stream("GET", f"{place}/content") as answer:
        assert client.delete(place).status_code == 200
        assert answer.read() == whole
    assert np.frombuffer(whole, np.uint8).size > 10_000


def test_a_stage_that_ends_fails_what_it_runs_and_makes_what_waits_after_its_restart(
    tmp_path: Path,
) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as mortal, client_of(mortal) as client:
        running, waiting = create(client, prompt="hang"), create(client)
        when(client, running, lambda now: now["progress"])
        mortal.do(mortal.stages.stages["studio"].kill)
        failed = done(client, running)
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "stage_unavailable"
        assert done(client, waiting)["status"] == "completed"


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that any server is asked to admit from now on."""
    found: list[object] = []
    admit = Flights.admit

    def admitted(flights: Flights, outputs: Collection[str]) -> Ticket:
        found.append(outputs)
        return admit(flights, outputs)

    monkeypatch.setattr(Flights, "admit", admitted)
    return found


def test_a_full_server_makes_a_job_wait_for_the_end_of_an_answer(
    tmp_path: Path, tries: list[object]
) -> None:
    graph = {**STUDIO, "deadlines": {"first_chunk_s": 60, "next_chunk_s": 60}}
    with running_gateway(tmp_path, graph, max_requests=1) as full, client_of(full) as client:
        first = create(client, prompt="hang")
        when(client, first, lambda now: now["progress"])
        refused = client.post(f"{URL}/sync", json={"prompt": "a cat"})
        assert refused.status_code == 503
        second = create(client)
        time.sleep(1.5 * int(refused.headers["retry-after"]))
        assert job_of(client, second)["status"] == "queued"
        assert len(tries) == 3, "it does not ask again meanwhile"
        assert client.delete(f"{URL}/{first['id']}").status_code == 200
        assert done(client, second)["status"] == "completed"
        assert len(tries) == 4


CHANGE: Change = ("add_lora", {})


@pytest.mark.parametrize(
    ("shut", "open_again"),
    [
        (OwnedStage.refuse_requests, OwnedStage.accept_requests),
        (lambda link: link.note_missed([CHANGE]), lambda link: link.note_done(CHANGE)),
        (lambda link: link.begin_next_generation(), lambda link: link.apply(Ready())),
    ],
    ids=["asleep", "differs", "loading"],
)
def test_a_job_waits_for_its_stage_to_take_requests_again(
    shut: Callable[[OwnedStage], None],
    open_again: Callable[[OwnedStage], None],
    tmp_path: Path,
    tries: list[object],
) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as gateway, client_of(gateway) as client:
        (link,) = gateway.runtime.fleet.stages.values()
        assert isinstance(link, OwnedStage)
        first, second = create(client, prompt="hang"), create(client)
        when(client, first, lambda now: now["progress"])
        gateway.do(lambda: shut(link))
        assert client.delete(f"{URL}/{first['id']}").status_code == 200
        wait_until(lambda: len(tries) == 2)
        assert job_of(client, second)["status"] == "queued"
        gateway.do(lambda: open_again(link))
        assert done(client, second)["status"] == "completed"
        assert len(tries) == 3


def test_a_job_that_waits_ends_with_its_server(tmp_path: Path, tries: list[object]) -> None:
    bounds = VideoBounds(at_once=1)
    with running_gateway(tmp_path, STUDIO, videos=bounds) as gateway, client_of(gateway) as client:
        (link,) = gateway.runtime.fleet.stages.values()
        assert isinstance(link, OwnedStage)
        first, second = create(client, prompt="hang"), create(client)
        when(client, first, lambda now: now["progress"])
        gateway.do(link.refuse_requests)
        client.delete(f"{URL}/{first['id']}")
        wait_until(lambda: len(tries) == 2)
        gateway.do(gateway.runtime.flights.stop_admitting)
        failed = done(client, second)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "stopping")
