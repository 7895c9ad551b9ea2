"""Files of every kind, broken in every way: read, or refused by the part's name in our words."""

import base64

import pytest
from support.hostile.broken import BREAKAGES, KINDS, is_internal
from support.media.taken_media import taken

from omnistage.server.common.errors import ApiError
from omnistage.server.media.medium import Medium

# Pillow's, of files that it reads all the same, or refuses afterwards.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning"),
]

PATH = "messages[0].content[1]"
MAX_CHARACTERS = 300
FILES = [(kind, name) for kind, files in KINDS.items() for name in files]


def medium_of(kind: str, data: bytes) -> Medium:
    url = f"data:application/octet-stream;base64,{base64.b64encode(data).decode()}"
    return Medium.of_part({"type": kind, kind: {"url": url}}, PATH)


def refused(medium: Medium, data: bytes) -> ApiError | None:
    try:
        taken(medium, data)
    except ApiError as error:
        return error
    return None


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_file_that_is_whole_is_read(kind: str, name: str) -> None:
    data = KINDS[kind][name]
    assert bool(taken(medium_of(kind, data), data)) == (kind != "image_url")


@pytest.mark.parametrize("how", BREAKAGES)
@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_file_that_is_broken_is_read_or_refused_in_words(kind: str, name: str, how: str) -> None:
    data = BREAKAGES[how](KINDS[kind][name])
    refusal = refused(medium_of(kind, data), data)
    if refusal is not None:
        assert (refusal.status, refusal.param) == (400, f"{PATH}.{kind}")
        assert refusal.message.startswith(f"{PATH}.{kind} ")
        assert len(refusal.message) <= MAX_CHARACTERS
        assert not is_internal(refusal.message), refusal.message


CERTAIN = ("truncated", "header only", "nothing but zeros", "another's magic", "empty")


@pytest.mark.parametrize("how", CERTAIN)
@pytest.mark.parametrize("name", KINDS["image_url"])
def test_an_image_that_is_not_all_there_is_refused(name: str, how: str) -> None:
    data = BREAKAGES[how](KINDS["image_url"][name])
    with pytest.raises(ApiError):
        taken(medium_of("image_url", data), data)
