"""How many tokens a request's words are."""

import copy

from transformers import PreTrainedTokenizerBase

from omnistage.stages.diffusion.pipeline import HasComponents


class TokenCounter:
    """Counts with a copy of a pipeline's first tokenizer: the engine's thread uses the other."""

    def __init__(self, pipeline: HasComponents) -> None:
        tokenizers = (
            component
            for component in pipeline.components.values()
            if isinstance(component, PreTrainedTokenizerBase)
        )
        self._tokenizer = copy.deepcopy(next(tokenizers, None))

    def count(self, *texts: str | list[str] | None) -> int:
        """The tokens of all texts; 0 for a pipeline without a tokenizer."""
        if self._tokenizer is None:
            return 0
        listed = [[text] if isinstance(text, str) else text or [] for text in texts]
        given = [text for texts in listed for text in texts if text]
        return sum(len(self._tokenizer(text, add_special_tokens=False).input_ids) for text in given)
