"""A form's text is UTF-8: another charset of its Content-Type decodes nothing."""

import httpx
import pytest
from support.gateway.image_forms import PNG
from support.gateway.image_forms import URL as EDITS
from support.gateway.transcripts import URL, WAV


def form(client: httpx.Client, url: str, charset: str, file: tuple[str, bytes]) -> httpx.Response:
    """Posts a small form whose Content-Type names the charset."""
    name, data = file
    whole = httpx.Request(
        "POST", client.base_url, data={"prompt": "words"}, files={name: ("x", data)}
    )
    kind = f"{whole.headers['content-type']}; charset={charset}"
    return client.post(url, content=whole.read(), headers={"content-type": kind})


@pytest.mark.parametrize(
    "charset", ["punycode", "undefined", "unicode_escape", "utf-16", '"utf-7"', "klingon", ""]
)
def test_a_form_of_another_charset_is_a_415(charset: str, client: httpx.Client) -> None:
    refused = form(client, URL, charset, ("file", WAV))
    assert refused.status_code == 415, refused.text
    assert refused.json()["error"]["code"] == "unsupported_media_type"
    assert "charset" in refused.json()["error"]["message"]


def test_an_edit_of_another_charset_is_a_415(images_client: httpx.Client) -> None:
    assert form(images_client, EDITS, "punycode", ("image", PNG)).status_code == 415
    assert form(images_client, EDITS, "utf-8", ("image", PNG)).status_code == 200


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", '"utf-8"', "us-ascii"])
def test_a_form_that_says_that_it_is_utf_8_is_read(charset: str, client: httpx.Client) -> None:
    assert form(client, URL, charset, ("file", WAV)).status_code == 200
