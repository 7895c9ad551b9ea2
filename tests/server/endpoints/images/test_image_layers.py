"""Images in layers over HTTP, from fake stages."""

import json
from typing import Any

import httpx
import pytest
from support.gateway.serving import RunningGateway
from support.media.pictures import pixels_of, png

EDITS = "/v1/images/edits"
FORM = {"prompt": "a hat", "n": "2", "layers": "3", "resolution": "640"}


def test_an_answer_has_every_layer_of_every_image(
    images: RunningGateway, images_client: httpx.Client
) -> None:
    answer = images_client.post(
        EDITS, data={**FORM, "background": "transparent"}, files={"image": png(48, 32)}
    )
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["layer"] for one in data] == [0, 1, 2, 0, 1, 2]
    assert {pixels_of(one["b64_json"]).shape for one in data} == {(32, 48, 4)}
    assert [pixels_of(one["b64_json"])[0, 0, 0] for one in data] == list(range(6))
    fields = images.stages.stages["dit"].opened[-1].message.fields
    assert (fields["layers"], fields["resolution"]) == (3, 640)


def test_events_have_the_layer_of_their_image(images_client: httpx.Client) -> None:
    form = {**FORM, "stream": "true"}
    answer = images_client.post(EDITS, data=form, files={"image": png(48, 32)})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    assert [one["layer"] for one in events] == [0, 1, 2, 0, 1, 2]


def test_a_whole_image_has_no_layer(images_client: httpx.Client) -> None:
    answer = images_client.post(EDITS, data={"prompt": "a"}, files={"image": png(48, 32)})
    assert set(answer.json()["data"][0]) == {"b64_json"}


@pytest.mark.parametrize("name", ["layers", "resolution"])
@pytest.mark.parametrize("value", ["0", "-1", "1e308", "[4]", "words", "100000", "2.5"])
def test_a_wrong_number_is_a_400(name: str, value: Any, images_client: httpx.Client) -> None:
    form = {"prompt": "a", name: value}
    answer = images_client.post(EDITS, data=form, files={"image": png(48, 32)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
