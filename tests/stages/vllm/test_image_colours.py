"""The reader of vLLM sees the colours of an image that a gateway has checked."""

import base64

import numpy as np
import pytest
from support.api.prompts import data_url
from support.media.hosts import MediaHosts
from support.media.image_files import FILES, ImageFile
from vllm.multimodal.media.image import ImageMediaIO

from omnistage.server.media.files import MediaFolder
from omnistage.server.media.images import File, read_images
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
async def test_a_stage_sees_what_an_edit_gets(case: ImageFile) -> None:
    url = data_url("image/x", case.data)
    medium = Medium("image", {"type": "image_url", "image_url": {"url": url}})
    await MediaLoader(MediaHosts().fetcher(), MediaFolder(None)).load_all([medium])
    seen = np.asarray(ImageMediaIO().load_bytes(base64.b64decode(medium.encoded)).media)
    assert np.abs(seen.astype(int) - case.pixels).max() <= case.error
    (edited,) = read_images([File("image", case.data)]).images
    assert np.array_equal(seen, edited)
