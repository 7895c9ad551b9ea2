"""One request for each piece of a long text, and what they used together."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from omnistage.connectors.chunk import Tensor
from omnistage.server.runtime.request import (
    AudioOutput,
    GraphRequest,
    InputTokensOutput,
    Output,
    TextOutput,
)
from omnistage.server.tasks.speech.pieces import is_blank, pieces_of
from omnistage.server.tasks.speech.reference import Reference
from omnistage.stage_configs.declared.sampling import MAX_SEED
from omnistage.stages.messages.body import VoiceSample


def with_reference(request: GraphRequest, reference: Reference | None) -> GraphRequest:
    """The same, spoken with the voice of a sound."""
    if reference is None:
        return request
    sample = VoiceSample(reference.key, reference.text)
    tensors = {"reference": Tensor.from_numpy(reference.samples)}
    body = structs.replace(request.given_text, reference=sample)
    return replace(request.changed(body=body), tensors=tensors)


def pieces_of_request(request: GraphRequest, max_characters: int) -> Sequence[GraphRequest]:
    """The same request for each piece of its text that has something to say; a short one as it is.

    The first has the request's id and seed; those of the others follow from them.
    """
    text = request.given_text.text
    if len(text) <= max_characters:
        return [request]
    return list(_requests(request, words_of(text, max_characters)))


def words_of(text: str, max_characters: int) -> list[str]:
    """Return the pieces of a text that say something, without white space around them."""
    return [one.strip() for one in pieces_of(text, max_characters) if not is_blank(one)]


def _requests(request: GraphRequest, pieces: Sequence[str]) -> Iterator[GraphRequest]:
    for number, piece in enumerate(pieces):
        yield numbered(request, piece, number)


def numbered(request: GraphRequest, piece: str, number: int) -> GraphRequest:
    """The request of one piece of its text."""
    seed = request.message.seed
    made = request.changed(
        body=structs.replace(request.given_text, text=piece),
        seed=None if seed is None else seed_of_piece(seed, number),
    )
    return replace(made, id=f"{request.id}-{number}") if number else made


def seed_of_piece(seed: int, number: int) -> int:
    """That of a piece: the first has the request's own."""
    if number == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) & MAX_SEED


@dataclass(slots=True)
class SpeechUsage:
    """The usage of all pieces of an answer."""

    num_tokens: int = 0
    num_frames: int = 0

    def add(self, output: Output) -> None:
        """Count what one output says of it."""
        if isinstance(output, TextOutput):
            usage = output.chunk.get("usage") or {}
            self.num_tokens += usage.get("prompt_tokens") or 0
        elif isinstance(output, InputTokensOutput):
            self.num_tokens += output.num_tokens
        elif isinstance(output, AudioOutput):
            self.num_frames += output.num_frames

    def to_dict(self) -> dict[str, int]:
        """Returns it as OpenAI counts."""
        return {
            "input_tokens": self.num_tokens,
            "output_tokens": self.num_frames,
            "total_tokens": self.num_tokens + self.num_frames,
        }
