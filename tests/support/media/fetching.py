"""Fetches of media from hosts of a test."""

import pytest
from support.media.hosts import MediaHosts

from omnistage.server.media.fetch import Budget, MediaError

ENOUGH = 1 << 20


async def refusal(hosts: MediaHosts, url: str) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await hosts.fetcher().fetch(hosts.url(url), Budget(ENOUGH))
    return caught.value
