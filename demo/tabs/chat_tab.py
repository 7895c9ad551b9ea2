"""The tab of chats."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from omnistage.demo import assets, examples
from omnistage.demo.attachments import parts_of
from omnistage.demo.backend import UNSET, Backend, number, whole, written
from omnistage.demo.bubbles import bubbles
from omnistage.demo.chat import ChatAnswer, ChatSettings, ChatTurn, ask
from omnistage.demo.failure import FAILURES
from omnistage.demo.offer import MODES, ModelOffer
from omnistage.demo.pace import paced
from omnistage.demo.pictures import png
from omnistage.demo.sound import wav
from omnistage.demo.waterfall import EMPTY, times_html

FILE_TYPES = ["image", "audio", "video", "text"]
PLACEHOLDER = "Ask something; attach files or record your voice"
HELLO = "**Ask something.** Type, attach files, record your voice, or click an example."
READY, RUNNING = ({"submit_btn": True, "stop_btn": False}, {"submit_btn": False, "stop_btn": True})
# By what a reader clicks: the question, and the names of its files.
EXAMPLES = {
    "A sum": ("What is seven plus five?", ()),
    "A short story": ("Tell me a story about a dog in the garden.", ()),
    "A picture": ("What is in the picture?", ("picture",)),
    "A spoken question": ("", ("question",)),
}
DRAWING = ("A drawing", "Draw a red circle on blue.")  # where a chat draws

Updates = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChatTab:
    """The parts of the page that change once the server's offer is known."""

    mode: gr.Radio
    voice: gr.Dropdown
    conversation: gr.Chatbot
    questions: list[dict[str, Any]]  # of the examples


@dataclass(frozen=True, slots=True)
class Chatting:
    """Answers questions; every update is of chat, question, turns, player and times."""

    backend: Backend

    async def answer(
        self,
        asked: Mapping[str, Any],
        turns: tuple[ChatTurn, ...] | None,
        offer: ModelOffer | None,
        *chosen: Any,
    ) -> AsyncGenerator[Updates, None]:
        """Ask, and show what comes."""
        question = ChatTurn(written(asked.get("text")), tuple(asked.get("files") or ()))
        if not (question.text or question.files):
            yield (gr.skip(),) * 5
            return
        before = turns or ()
        answer = ChatAnswer(self.backend.sounds.open())
        emptied = gr.update(value=None, **RUNNING)
        yield bubbles((*before, question), True), emptied, (*before, question), None, EMPTY
        try:
            settings = chat_settings(await self.backend.offer(offer), *chosen)
            question = replace(question, parts=tuple(parts_of(question.files)))
            if "audio" in settings.outputs:
                yield gr.skip(), gr.skip(), gr.skip(), answer.sound.id, gr.skip()
            coming = ask(self.backend.client, settings, (*before, question), answer)
            async with aclosing(paced(coming)) as news:
                async for _ in news:
                    question = replace(question, answer=answer.text)
                    yield self._show((*before, question), answer, True)
            question = replace(question, answer_files=self._files(answer))
        except FAILURES as error:
            question = replace(question, answer=answer.text, failure=self.backend.plain(error))
        finally:
            answer.sound.end()
        yield self._show((*before, question), answer, False)

    def _show(self, turns: tuple[ChatTurn, ...], answer: ChatAnswer, is_running: bool) -> Updates:
        times = times_html(answer.timing, answer.marks)
        box = gr.skip() if is_running else gr.update(**READY)
        return bubbles(turns, is_running), box, turns, gr.skip(), times

    def _files(self, answer: ChatAnswer) -> tuple[str, ...]:
        """The pictures and the sound of an answer, to be looked at and heard again."""
        save = self.backend.files.save
        images = [save(image, ".png") for image in answer.images]
        samples = answer.sound.samples
        return (*images, *([save(wav(samples), ".wav")] if samples else ()))


def chat_settings(
    offer: ModelOffer,
    mode: str | None,
    voice: str | None,
    system: str | None,
    max_tokens: str | None,
    temperature: str | None,
    seed: str | None,
) -> ChatSettings:
    """The fields of the tab."""
    return ChatSettings(
        offer.model,
        mode if mode in offer.modes else offer.modes[0],
        voice or next(iter(offer.voices), None),
        written(system),
        whole("Maximum tokens of text", max_tokens),
        number("Temperature", temperature),
        whole("Seed", seed),
        offer.has_timeline,
    )


def add_capture(capture: str | None, asked: Mapping[str, Any] | None) -> Updates:
    """A picture of the camera becomes a file of the question."""
    if capture is None:
        return gr.skip(), gr.skip()
    known = asked or {}
    files = [*(known.get("files") or ()), capture]
    return {"text": known.get("text") or "", "files": files}, None


def build(backend: Backend, offer: gr.State) -> ChatTab:
    """Lay it out and connect it."""
    turns, clicked = gr.State(()), gr.State(None)
    questions = example_questions(backend)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=320):
            chat = gr.Chatbot(
                label="Conversation",
                height=440,
                placeholder=HELLO,
                elem_id="chat",
                buttons=["copy"],
                feedback_options=None,
                examples=shown_examples(questions, None),
            )
            player = assets.player("chat-player")
            box = gr.MultimodalTextbox(
                sources=["upload", "microphone"],
                file_count="multiple",
                file_types=FILE_TYPES,
                placeholder=PLACEHOLDER,
                label="Question",
                show_label=False,
                elem_id="question",
            )
            with gr.Accordion("Camera", open=False):
                camera = gr.Image(
                    sources=["webcam"],
                    type="filepath",
                    label="Take an image for the question",
                    height=260,
                    buttons=[],
                )
        with gr.Column(scale=1, min_width=300):
            mode = gr.Radio(["Text"], value="Text", label="Answer with", elem_id="mode")
            voice = gr.Dropdown([], label="Voice", visible=False, elem_id="voice")
            with gr.Accordion("More settings", open=False):
                system = gr.Textbox(label="System prompt", lines=2)
                limit = gr.Textbox(label="Maximum tokens of text", placeholder=UNSET)
                temperature = gr.Textbox(label="Temperature", placeholder=UNSET)
                seed = gr.Textbox(label="Seed", placeholder=UNSET)
            gr.Markdown("### Timings of the last answer")
            times = gr.HTML(EMPTY, elem_id="times")
    chatting = Chatting(backend)
    chosen = [mode, voice, system, limit, temperature, seed]
    shown = [chat, box, turns, player, times]
    running = box.submit(chatting.answer, [box, turns, offer, *chosen], shown, api_name="chat")

    def pick(
        event: gr.SelectData, offered: ModelOffer | None, chosen: str | None
    ) -> tuple[dict[str, Any], str | None]:
        if int(event.index) < len(EXAMPLES):
            return questions[int(event.index)], chosen
        return {"text": DRAWING[1], "files": []}, offered.drawing_mode if offered else chosen

    picked = chat.example_select(
        pick, [offer, mode], [clicked, mode], api_visibility="private"
    ).then(chatting.answer, [clicked, turns, offer, *chosen], shown, api_visibility="private")
    box.stop(
        lambda: (None, gr.update(**READY)),
        None,
        [player, box],
        cancels=[running, picked],
        api_visibility="private",
    )
    chat.clear(
        lambda: ([], (), None, EMPTY, gr.update(**READY)),
        None,
        [chat, turns, player, times, box],
        cancels=[running, picked],
        api_visibility="private",
    )
    camera.change(add_capture, [camera, box], [box, camera], api_visibility="private")
    mode.change(
        lambda chosen: gr.update(visible="audio" in MODES.get(chosen, ())),
        mode,
        voice,
        api_visibility="private",
    )
    return ChatTab(mode, voice, chat, questions)


def shown_examples(
    questions: Sequence[Mapping[str, Any]], offer: ModelOffer | None
) -> list[dict[str, Any]]:
    """The examples of an empty conversation, in order; a drawing where a chat draws."""
    shown = [
        {"display_text": label, **question, "files": [*question["files"]]}
        for label, question in zip(EXAMPLES, questions, strict=True)
    ]
    if offer is not None and offer.drawing_mode is not None:
        shown.append({"display_text": DRAWING[0], "text": DRAWING[1], "files": []})
    return shown


def example_questions(backend: Backend) -> list[dict[str, Any]]:
    """Return the examples as values of the box, in order."""
    picture = backend.files.save(png(examples.circle()), ".png")
    question = backend.files.save(examples.spoken_question(), ".mp3")
    files = {"picture": picture, "question": question}
    return [
        {"text": text, "files": [files[name] for name in names]}
        for text, names in EXAMPLES.values()
    ]
