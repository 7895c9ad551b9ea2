"""Chooses the replica of each stage that gets a request, and refuses what those do not make."""

from collections import Counter
from collections.abc import Iterable, Sequence

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.request import GraphRequest
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_stage import Request

Path = Sequence[StageLink]  # one replica of each stage that a request goes through


class Routes:
    """Counts the requests of each replica, and binds each request to the one with the fewest.

    Among equals it is the one whose last request is the longest ago.
    """

    def __init__(self) -> None:
        self._num_requests: Counter[StageLink] = Counter()
        self._last_turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, replicas: Iterable[Sequence[StageLink]]) -> Path:
        """One of each stage's replicas, all of which take requests."""
        return [min(those, key=self._load) for those in replicas]

    def _load(self, link: StageLink) -> tuple[int, int]:
        return self._num_requests[link], self._last_turns.get(link.name, 0)

    def begin(self, path: Path) -> None:
        """A request is sent on its way."""
        self._turn += 1
        for link in path:
            self._num_requests[link] += 1
            self._last_turns[link.name] = self._turn

    def end(self, path: Path) -> None:
        """It has ended, or goes another way."""
        for link in path:
            self._num_requests[link] -= 1
            if not self._num_requests[link]:
                del self._num_requests[link]


MAKES_IMAGES = {"image", "video"}


def drawn(message: Request) -> JsonMap:
    """Return the fields of what a request has drawn; its prompt may not be written yet."""
    if message.image is not None:
        return {**message.image.fields, "prompt": ""}
    return message.fields


def check_work(request: GraphRequest, path: Iterable[StageLink]) -> None:
    """Raise ApiError for a request that a stage on its path does not make: too much, or a size."""
    if not MAKES_IMAGES & set(request.outputs):
        return
    media = request.message.given_media
    name = next((one.tensor for one in media if one.field == "image"), None)
    given = None if name is None else request.tensors[name]
    image = None if given is None else (given.shape[1], given.shape[0])
    body = drawn(request.message)
    for link in path:
        refusal = link.record.work.refusal(body, image)
        if refusal is not None:
            message = f"{refusal.param}: {refusal.message}"
            if not refusal.is_too_much:
                raise ApiError(400, message, param=refusal.param, code="invalid_value")
            raise ApiError(400, message, param=refusal.param, code="too_much_work")
