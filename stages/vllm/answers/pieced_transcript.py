"""The transcript of one audio: its pieces are transcribed at once, and streamed in their order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from omnistage.stage_configs.json_types import Json
from omnistage.stages.messages.body import Transcribe
from omnistage.stages.vllm.answers.speech_prompts import Samples, SpeechPrompts
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind

MAX_AHEAD = 8  # pieces of one audio that are transcribed at once
Chunk = Json


class PieceTask:
    """One piece under way in the engine; its outputs wait here."""

    def __init__(self, outputs: AsyncGenerator[Any, None], prompt: Mapping[str, Any]) -> None:
        audio = (prompt.get("mm_placeholders") or {}).get("audio", ())
        self.num_audio_tokens = sum(place.length for place in audio)
        self._outputs = outputs
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async for output in self._outputs:
                self._queue.put_nowait(output)
        finally:
            self._queue.put_nowait(None)

    async def outputs(self) -> AsyncGenerator[Any, None]:
        """Yield vLLM's outputs as they come; raises what the engine raised."""
        while (output := await self._queue.get()) is not None:
            yield output
        await self._task

    async def cancel(self) -> None:
        """End it, if it has not ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class PiecedTranscript:
    """One request's transcript as chunks of a chat completion; `usage` counts all pieces."""

    def __init__(
        self, engine: AsyncLLM, prompts: SpeechPrompts, request_id: str, body: Transcribe
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._id = request_id
        self._body = body
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._num_audio_tokens = 0

    @property
    def usage(self) -> Chunk:
        """Returns vLLM's usage of what has been transcribed."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_tokens,
            "prompt_tokens_details": {"multimodal_tokens": {"audio": self._num_audio_tokens}},
        }

    async def chunks(
        self, samples: Samples, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the text of samples, float32 [n], as it comes, then why it ends; RequestError.

        A piece whose text fills the context ends there, and the next goes on: the piece itself
        fits, so the model repeats itself. It ended by "length" where speech is not cut, or by the
        request's bound.
        `headers`: those of its trace, if it is recorded.
        """
        pieces = self._prompts.cut(samples)
        language = self._prompts.language_of(self._body.language)
        if language is None:
            language = await self._prompts.language_in(pieces[0], self._id)
        separator = self._prompts.separator(language)
        # A bound of all tokens leaves to each piece what those before it have not used.
        num_ahead = MAX_AHEAD if self._body.max_tokens is None else 1
        running: deque[PieceTask] = deque()
        begun = 0
        ended_by = "stop"
        has_text = False
        try:
            while begun < len(pieces) or running:
                while begun < len(pieces) and len(running) < num_ahead and not self._is_spent:
                    running.append(await self._begin(pieces[begun], language, begun, headers))
                    begun += 1
                if not running:
                    ended_by = "length"
                    break
                cleaner, before = self._prompts.cleaner(), separator if has_text else ""
                async for output in running[0].outputs():
                    (made,) = output.outputs
                    self._count(output, running[0])
                    text = cleaner.process_delta(made.text, made.finish_reason is not None)
                    if text:
                        text, before, has_text = before + text, "", True
                    if made.finish_reason == "length" and self._may_lack_words:
                        ended_by = "length"
                    yield _chunk(text, made)
                running.popleft()
        finally:
            for task in running:
                await task.cancel()
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": ended_by}]}

    @property
    def _left(self) -> int | None:
        most = self._body.max_tokens
        return None if most is None else most - self._num_tokens

    @property
    def _may_lack_words(self) -> bool:
        return self._body.max_tokens is not None or not self._prompts.are_cut

    @property
    def _is_spent(self) -> bool:
        return self._left is not None and self._left <= 0

    async def _begin(
        self,
        piece: Samples,
        language: str | None,
        number: int,
        headers: Mapping[str, str] | None,
    ) -> PieceTask:
        prompt = await self._prompts.prompt(piece, self._body, language)
        sampling = self._prompts.sampling(
            self._body, self._left, output_kind=RequestOutputKind.DELTA
        )
        name = f"{self._id}-{number}"
        return PieceTask(
            self._engine.generate(prompt, sampling, name, trace_headers=headers), prompt
        )

    def _count(self, output: Any, task: PieceTask) -> None:
        (made,) = output.outputs
        self._num_tokens += len(made.token_ids)
        if made.finish_reason is not None:
            self._num_prompt_tokens += len(output.prompt_token_ids or ())
            self._num_audio_tokens += task.num_audio_tokens


def _chunk(text: str, made: Any) -> Chunk:
    """Return what one output brings, without the token that ends a piece."""
    ids = list(made.token_ids)
    scored = list(made.logprobs or ())
    if made.finish_reason == "stop":
        ids, scored = ids[:-1], scored[:-1]
    choice: Chunk = {"index": 0, "delta": {"content": text} if text else {}, "token_ids": ids}
    if scored:
        entries = [
            _entry(logprobs[token_id]) for token_id, logprobs in zip(ids, scored, strict=True)
        ]
        choice["logprobs"] = {"content": entries}
    return {"choices": [choice]}


def _entry(scored: Any) -> Chunk:
    token = scored.decoded_token or ""
    return {"token": token, "bytes": list(token.encode()), "logprob": scored.logprob}
