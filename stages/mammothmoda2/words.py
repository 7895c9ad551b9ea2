"""The stage of words: what MammothModa2's language model answers to texts and images."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from omnistage.stages.mammothmoda2.words_folder import write_words_folder
from omnistage.stages.mammothmoda2.words_model import DRAWING, LANGUAGE_MODEL
from omnistage.stages.vllm.answers.rendered import RenderedLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.loading.fit import ModelPart
from omnistage.stages.vllm.text import TextStage
from omnistage.stages.worker.stage import StagePorts


class WordsStage(TextStage):
    """Answers chats by one AsyncLLM of the half of the language model that reads.

    It draws nothing: image ids are another stage's, whose engine has other heads.
    """

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports)
        self._folder = ExitStack()

    def _make_engine(self) -> RenderedLLM:
        ports = self._ports
        folder = self._folder.enter_context(TemporaryDirectory(prefix="mammothmoda2-"))
        write_words_folder(ports.model, Path(folder))
        part = ModelPart(f"{LANGUAGE_MODEL}model.language_model.", without=DRAWING)
        return make_engine(RenderedLLM, folder, ports.engine, None, stage=ports.name, part=part)

    async def close(self) -> None:
        """Stop the engine."""
        await super().close()
        self._folder.close()
