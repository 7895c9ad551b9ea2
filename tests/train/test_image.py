import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from image.data import pool
from image.draw import Drawer
from image.parts import NUM_DROPPED, TEMPLATE, make_tokenizer, new_vae, pipeline
from image.render import contents, render
from image.scenes import KINDS, Drawing, Thing, drawing
from support.oracles import drawings
from support.oracles.drawings import faults, seen
from world import COLOURS, is_held_out

NUM_PROMPTS = 300


def some(held_out: bool = True, count: int = NUM_PROMPTS) -> list[Drawing]:
    pick = random.Random(4)
    return [drawing(pick, held_out) for _ in range(count)]


def pixels(made: Sequence[Drawing]) -> npt.NDArray[np.uint8]:
    torch.manual_seed(0)
    pictures = render(contents(made), 128).permute(0, 2, 3, 1)
    return ((pictures + 1) * 127.5).round().byte().numpy()


def test_the_eye_finds_each_drawing_as_its_prompt_asks() -> None:
    made = some()
    wrong = {
        one.prompt: found
        for one, picture in zip(made, pixels(made), strict=True)
        if (found := faults(picture, one.prompt))
    }
    assert not wrong


def test_the_eye_finds_that_a_drawing_is_of_other_shapes() -> None:
    def shapes(one: Drawing) -> list[tuple[str, str]]:
        return sorted((thing.colour, thing.kind) for thing in one.things)

    made = some()
    others = made[1:] + made[:1]
    pairs = [pair for pair in zip(made, others, strict=True) if shapes(pair[0]) != shapes(pair[1])]
    assert len(pairs) > NUM_PROMPTS - 10
    for (one, _), picture in zip(pairs, pixels([other for _, other in pairs]), strict=True):
        assert faults(picture, one.prompt)


def test_the_eye_knows_the_words_of_the_training() -> None:
    assert list(drawings.COLOURS) == COLOURS
    assert drawings.KINDS == KINDS


RED = Thing("red", "circle", 0.5, 0.5, 0.27)
PAIR = (Thing("red", "circle", 0.5, 0.27, 0.18), Thing("black", "star", 0.5, 0.73, 0.18))
ROW = (Thing("red", "circle", 0.27, 0.5, 0.18), Thing("black", "star", 0.73, 0.5, 0.18))


@pytest.mark.parametrize(
    ("shown", "right", "wrong", "fault"),
    [
        ((RED,), "a red circle on blue", "a red circle on green", "the ground is blue, not green"),
        ((RED,), "a red circle", "a red square", "no red square"),
        ((RED,), "a red circle", "a green circle", "no green circle"),
        ((RED,), "a red circle", "a small red circle", "the circle is not small"),
        ((RED,), "a red circle", "a big red circle", "the circle is not big"),
        ((RED,), "a red circle", "two red circles", "no red circle"),
        (ROW, "a red circle and a black star", "a red circle", "a black star too many"),
        (
            PAIR,
            "a red circle above a black star",
            "a red circle under a black star",
            "the circle is not under the star",
        ),
        (
            ROW,
            "a red circle to the left of a black star on a blue ground",
            "a red circle to the right of a black star on blue",
            "the circle is not right of the star",
        ),
        (
            (Thing("red", "circle", 0.2, 0.2, 0.13),),
            "on blue, a red circle in the top left",
            "a red circle at the bottom left on blue",
            "no red circle bottom left",
        ),
    ],
)
def test_the_eye_says_what_is_wrong(
    shown: tuple[Thing, ...], right: str, wrong: str, fault: str
) -> None:
    (picture,) = pixels([Drawing("blue", shown, right)])
    assert faults(picture, right) == []
    assert any(found.startswith(fault) for found in faults(picture, wrong))


def test_the_eye_finds_no_shape_on_a_plain_ground() -> None:
    assert seen(np.full((128, 128, 3), 245, np.uint8)) == ("white", [])


def test_what_is_held_out_is_never_trained() -> None:
    assert all(is_held_out(one.words) for one in some())
    assert not any(is_held_out(one.words) for one in some(held_out=False))


def test_each_word_of_a_prompt_is_one_token_and_the_template_drops_those_before_it() -> None:
    tokenizer = make_tokenizer().tokenizer
    start, end = (tokenizer.encode(part).ids for part in TEMPLATE.split("{}"))
    assert len(start) == NUM_DROPPED
    for one in some():
        words = tokenizer.pre_tokenizer.pre_tokenize_str(one.prompt)
        ids = tokenizer.encode(TEMPLATE.format(one.prompt)).ids
        assert ids[:NUM_DROPPED] == start
        assert len(ids) == len(start) + len(words) + len(end)


@torch.no_grad()
def test_a_training_step_conditions_as_the_pipeline_does() -> None:
    tokenizer = make_tokenizer()
    drawer = Drawer()
    for parameter in drawer.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))  # it begins by changing nothing
    served = pipeline(new_vae(), drawer.encoder, drawer.transformer, tokenizer)
    drawn = pool(6, tokenizer, torch.device("cpu"))
    latents, sigmas = torch.randn(12, 64, 32), torch.rand(12)
    found = drawer(latents, sigmas, drawn.ids[:6].long(), drawn.counts[:6])
    for row in range(6):
        ids = drawn.ids[row, : drawn.counts[row]]
        text = tokenizer.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        start, end = TEMPLATE.split("{}")
        prompt = text.removeprefix(start).removesuffix(end)
        embeds, mask = served.encode_prompt(prompt)
        assert mask is None
        for place in (row, row + 6):
            wanted = served.transformer(
                hidden_states=latents[place : place + 1],
                timestep=sigmas[place : place + 1],
                encoder_hidden_states=embeds,
                img_shapes=[[(1, 8, 8)]],
                return_dict=False,
            )[0]
            assert wanted.abs().max() > 0.1
            torch.testing.assert_close(found[place], wanted[0], atol=1e-5, rtol=1e-5)
