"""Token ids of a text to be spoken, with a description of how in front of it."""

from tokenizers import Tokenizer

from omnistage.stages.vocoder.checkpoint import find

TOKENIZER_FILE = "tokenizer.json"
SPACE = "\u2581"  # in the name of a token
FIRST_IDEOGRAPH, LAST_IDEOGRAPH = "\u4e00", "\u9fff"


class VoxCpm2GivenText:
    """Makes token ids as the reference does: no token is of several Chinese characters.

    A special token's name is text like any other.
    """

    def __init__(self, model: str) -> None:
        path = find(model, TOKENIZER_FILE)
        if path is None:
            raise FileNotFoundError(f"{model} has no {TOKENIZER_FILE}")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = True
        names = self._tokenizer.get_vocab()
        self._joined = {name for name in names if len(name) > 1 and _is_chinese(name)}
        self._unknown = names.get("<unk>", 0)

    def tokens(self, text: str) -> list[int]:
        """Returns the tokens of a whole text."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = []
        for token_id, name in zip(encoded.ids, encoded.tokens, strict=True):
            word = name.replace(SPACE, "")
            if word in self._joined:
                ids += (self._id(character) for character in word)
            else:
                ids.append(token_id)
        return ids

    def _id(self, name: str) -> int:
        token_id = self._tokenizer.token_to_id(name)
        return self._unknown if token_id is None else int(token_id)


def described(text: str, instructions: str) -> str:
    """Returns a text with the description of how it is spoken, if there is one."""
    told = instructions.strip()
    return f"({told}){text}" if told else text


def _is_chinese(name: str) -> bool:
    return all(FIRST_IDEOGRAPH <= character <= LAST_IDEOGRAPH for character in name)
