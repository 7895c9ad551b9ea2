"""An embedding model as a stage, in a real engine: its vectors equal transformers'."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from support.api.bodies import embed_of
from support.stages.picked_stage import PickedStage, picked_stage
from transformers import AutoModel, AutoTokenizer

from omnistage.connectors.chunk import Chunk
from omnistage.stages.checkpoint.tiny_embedding import SIZE, write_tiny_embedding
from omnistage.stages.messages.to_gateway import (
    Embedding,
    ToGateway,
    Tokenized,
)
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-4
TEXTS = ["Hello", "A fox.", "Hello", "été " * 40, "x"]
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 16 << 20,
}


class Harness:
    """A stage, and transformers over the same folder."""

    def __init__(self, picked: PickedStage, model: str) -> None:
        self._picked = picked
        self._number = 0
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = AutoModel.from_pretrained(model).eval()

    async def chunks(self, body: Mapping[str, Any]) -> list[Chunk[ToGateway]]:
        """All that the stage sends for one request."""
        self._number += 1
        opened = Opened(f"request-{self._number}", Request(embed_of(body), ["embedding"]))
        return await self._picked.served(opened)

    async def vectors(self, given: Sequence[Any], **more: Any) -> list[Any]:
        """The vector of each input, in their order."""
        chunks = await self.chunks({"input": list(given), **more})
        found: dict[int, Any] = {}
        for chunk in chunks:
            assert isinstance(chunk.message, Embedding)
            assert chunk.message.index not in found
            found[chunk.message.index] = chunk.tensors["vector"].numpy()
        assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert sorted(found) == list(range(len(given)))
        return [found[index] for index in range(len(given))]

    def ids(self, text: str) -> list[int]:
        """transformers' tokens."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def expected(self, ids: list[int], size: int = SIZE) -> Any:
        """The last token's state, cut, then normalised."""
        with torch.inference_mode():
            state = self._model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1, :size]
        return (state / state.norm()).numpy()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embedding(
    tmp_path_factory: pytest.TempPathFactory, run_directory: Path, cpu_engine: None
) -> AsyncIterator[Harness]:
    """The one stage of the graph that is picked for the folder, made by its kind."""
    folder = tmp_path_factory.mktemp("embedding") / "tiny"
    write_tiny_embedding(folder)
    async with picked_stage(folder, "embedding", run_directory, ENGINE) as picked:
        assert picked.ready.max_model_len == ENGINE["max_model_len"]
        yield Harness(picked, str(folder))


async def test_vectors_of_texts_and_of_tokens_equal_transformers(embedding: Harness) -> None:
    expected = [embedding.expected(embedding.ids(text)) for text in TEXTS]
    assert np.abs(expected[0] - expected[1]).max() > 0.05  # texts differ
    for given in (TEXTS, [embedding.ids(text) for text in TEXTS]):
        for vector, right in zip(await embedding.vectors(given), expected, strict=True):
            assert vector.dtype == np.float32
            assert np.abs(vector - right).max() < TOLERANCE


async def test_more_inputs_than_the_channel_has_credit_for_all_come(embedding: Harness) -> None:
    texts = [f"number {number}" for number in range(50)]
    vectors = await embedding.vectors(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.abs(vector - embedding.expected(embedding.ids(text))).max() < TOLERANCE


async def test_vectors_are_cut_as_the_model_allows_and_normalised_again(embedding: Harness) -> None:
    (vector,) = await embedding.vectors(["Hello"], dimensions=16)
    assert np.abs(vector - embedding.expected(embedding.ids("Hello"), 16)).max() < TOLERANCE
    assert abs(float(np.linalg.norm(vector)) - 1) < TOLERANCE


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ["x"], "dimensions": 17}, "dimensions", "invalid_value"),
        ({"input": ["x"], "dimensions": 4096}, "dimensions", "invalid_value"),
        ({"input": ["x", "y" * 257]}, "input[1]", "context_length_exceeded"),
        ({"input": [[1] * 257]}, "input[0]", "context_length_exceeded"),
        ({"input": [[5, 1 << 20]]}, "input[0]", "invalid_value"),
    ],
)
async def test_what_the_model_cannot_take_is_refused(
    body: dict[str, Any], param: str, code: str, embedding: Harness
) -> None:
    with pytest.raises(RequestError) as caught:
        await embedding.chunks(body)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


async def test_its_tokenizer_answers_too(embedding: Harness) -> None:
    (chunk,) = await embedding.chunks({"tokenize": {"prompt": "A fox."}})
    assert chunk.message == Tokenized("embedding", embedding.ids("A fox."))
    (chunk,) = await embedding.chunks({"detokenize": {"tokens": embedding.ids("été")}})
    assert chunk.message == Tokenized("embedding", text="été")
