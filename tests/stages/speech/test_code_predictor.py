from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
)

from omnistage.stages.speech.code_predictor import CodePredictor
from omnistage.stages.speech.code_predictor_plain import pick
from omnistage.stages.speech.code_sampling import frame_sampling, gumbel_noise

NUM_GROUPS = 6
NUM_ROWS = 12
CONFIG = Qwen3OmniMoeTalkerCodePredictorConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_code_groups=NUM_GROUPS,
)


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    model = Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration(CONFIG)
    for parameter in model.train(False).requires_grad_(False).parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.3 * noise if parameter.dim() > 1 else 1 + 0.1 * noise)
    return model


@pytest.fixture(scope="module")
def predictor(reference: Any) -> CodePredictor:
    model = CodePredictor(CONFIG).requires_grad_(False)
    loaded = model.load_weights(reference.state_dict().items())
    assert loaded == {name for name, _ in model.named_parameters()}
    return model


@pytest.fixture(scope="module")
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, code 0 and its embedding of every row."""
    generator = torch.Generator().manual_seed(2)
    hidden, embedding = torch.randn(2, NUM_ROWS, 32, generator=generator)
    return hidden, torch.arange(NUM_ROWS), embedding


def settings(
    num_rows: int = NUM_ROWS, temperature: float = 0.0, top_k: int = 50, top_p: float = 0.8
) -> dict[str, torch.Tensor]:
    return {
        "temperature": torch.full((num_rows,), temperature),
        "top_k": torch.full((num_rows,), top_k),
        "top_p": torch.full((num_rows,), top_p),
        "seed": torch.arange(num_rows) * 1_000_003 - 7,
        "frame": torch.arange(num_rows) % 3,
    }


def test_greedy_frames_equal_the_reference(
    reference: Any, predictor: CodePredictor, inputs: tuple[torch.Tensor, ...]
) -> None:
    hidden, code0, embedding = inputs
    codes, frames = predictor(*inputs, **settings())
    expected = reference.generate(
        inputs_embeds=torch.stack([hidden, embedding], dim=1),
        max_new_tokens=NUM_GROUPS - 1,
        do_sample=False,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    assert codes.dtype == torch.int64
    assert torch.equal(codes[:, 0], code0)
    assert torch.equal(codes[:, 1:], expected.sequences)
    assert len(codes[:, 1:].unique()) > NUM_GROUPS
    # The sum as the reference's talker makes it for its next input.
    middle = [hidden_states[0] for hidden_states in expected.hidden_states[1:]]
    last = reference.get_input_embeddings()[-1](expected.sequences[:, -1:])
    total = torch.cat([embedding[:, None], *middle, last], dim=1).sum(1)
    assert torch.allclose(frames, total, atol=1e-5)


TALKER_SIZE = 40  # another width than the predictor's


@pytest.fixture(scope="module")
def wide_weights(reference: Any) -> dict[str, torch.Tensor]:
    """As a checkpoint has them: embeddings of the talker's width, and their projection."""
    generator = torch.Generator().manual_seed(5)
    weights = dict(reference.state_dict())
    for name in weights:
        if "codec_embedding" in name:
            weights[name] = torch.randn(CONFIG.vocab_size, TALKER_SIZE, generator=generator)
    for name, shape in (("weight", (CONFIG.hidden_size, TALKER_SIZE)), ("bias", (32,))):
        noise = 0.3 * torch.randn(shape, generator=generator)
        weights[f"small_to_mtp_projection.{name}"] = noise
    return weights


def projected(weights: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    name = "small_to_mtp_projection"
    return functional.linear(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])


def test_a_wider_talker_is_projected_and_its_frames_are_not(
    predictor: CodePredictor, wide_weights: dict[str, torch.Tensor]
) -> None:
    """As a predictor that is fed what was projected before."""
    wide = CodePredictor(CONFIG, talker_size=TALKER_SIZE).requires_grad_(False)
    assert wide.load_weights(wide_weights.items()) == {name for name, _ in wide.named_parameters()}
    own = CodePredictor(CONFIG).requires_grad_(False)
    tables = {name: one for name, one in wide_weights.items() if "codec_embedding" in name}
    narrow = {name: projected(wide_weights, one) for name, one in tables.items()}
    rest = {name: one for name, one in wide_weights.items() if "mtp_projection" not in name}
    own.load_weights({**rest, **narrow}.items())
    generator = torch.Generator().manual_seed(6)
    hidden, embedding = torch.randn(2, NUM_ROWS, TALKER_SIZE, generator=generator)
    code0 = torch.arange(NUM_ROWS)
    codes, frames = wide(hidden, code0, embedding, **settings())
    fed = [projected(wide_weights, one) for one in (hidden, embedding)]
    expected, _ = own(fed[0], code0, fed[1], **settings())
    assert torch.equal(codes, expected)
    parts = [table[codes[:, group]] for group, table in enumerate(tables.values(), start=1)]
    assert torch.allclose(frames, embedding + torch.stack(parts).sum(0), atol=1e-5)
    assert torch.allclose(wide.embedded(codes[:, 1:]), torch.stack(parts).sum(0), atol=1e-5)


def test_frames_of_a_sound_embed_as_those_that_are_spoken(
    reference: Any, predictor: CodePredictor, inputs: tuple[torch.Tensor, ...]
) -> None:
    embedding = inputs[2]
    model = CodePredictor(CONFIG, embeds_frames=True).requires_grad_(False)
    model.load_weights(reference.state_dict().items())
    codes, frames = model(*inputs, **settings())
    expected, expected_frames = predictor(*inputs, **settings())
    assert torch.equal(codes, expected)
    assert torch.equal(frames, expected_frames)
    assert torch.allclose(embedding + model.embedded(codes[:, 1:]), frames, atol=1e-5)


def test_bfloat16_follows_the_weights(
    reference: Any, predictor: CodePredictor, inputs: tuple[torch.Tensor, ...]
) -> None:
    half = CodePredictor(CONFIG).bfloat16().requires_grad_(False)
    half.load_weights(reference.state_dict().items())
    hidden, code0, embedding = inputs
    codes, frames = half(hidden.bfloat16(), code0, embedding.bfloat16(), **settings())
    expected, _ = predictor(*inputs, **settings())
    assert frames.dtype == torch.bfloat16
    assert (codes[:, 1] == expected[:, 1]).float().mean() > 0.8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_does_not_depend_on_its_batch(
    predictor: CodePredictor, inputs: tuple[torch.Tensor, ...], temperature: float
) -> None:
    sampling = settings(temperature=temperature)
    codes, frames = predictor(*inputs, **sampling)
    for row in range(NUM_ROWS):
        here = slice(row, row + 1)
        alone, frame = predictor(
            *(tensor[here] for tensor in inputs),
            **{name: tensor[here] for name, tensor in sampling.items()},
        )
        assert torch.equal(alone[0], codes[row])
        assert torch.allclose(frame[0], frames[row], atol=1e-5)


def test_seed_and_frame_decide_a_sample(
    predictor: CodePredictor, inputs: tuple[torch.Tensor, ...]
) -> None:
    sampling = settings(temperature=1.0, top_k=0, top_p=1.0)
    codes, _ = predictor(*inputs, **sampling)
    assert torch.equal(predictor(*inputs, **sampling)[0], codes)
    for name in ("seed", "frame"):
        changed, _ = predictor(*inputs, **(sampling | {name: sampling[name] + 1}))
        assert not torch.equal(changed, codes)


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-6}], ids=str)
def test_one_kept_code_is_greedy(
    predictor: CodePredictor, inputs: tuple[torch.Tensor, ...], narrow: dict[str, Any]
) -> None:
    greedy, _ = predictor(*inputs, **settings())
    narrowed, _ = predictor(*inputs, **settings(temperature=1.5, **narrow))
    assert torch.equal(narrowed, greedy)


def test_greedy_and_sampled_rows_share_a_batch(
    predictor: CodePredictor, inputs: tuple[torch.Tensor, ...]
) -> None:
    sampling = settings(temperature=1.0)
    sampling["temperature"][::2] = 0
    codes, _ = predictor(*inputs, **sampling)
    greedy, _ = predictor(*inputs, **settings())
    sampled, _ = predictor(*inputs, **settings(temperature=1.0))
    assert torch.equal(codes[::2], greedy[::2])
    assert torch.equal(codes[1::2], sampled[1::2])


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"), [(0, 1.0, 6), (3, 1.0, 3), (0, 0.8, 3), (4, 0.5, 2), (2, 0.9, 2)]
)
def test_samples_follow_the_kept_probabilities(top_k: int, top_p: float, kept: int) -> None:
    num_draws, codebook = 20_000, 1
    probabilities = torch.tensor([0.05, 0.4, 0.15, 0.25, 0.1, 0.05])
    sampling = frame_sampling(
        temperature=torch.full((num_draws,), 2.0),
        top_k=torch.full((num_draws,), top_k),
        top_p=torch.full((num_draws,), top_p),
        seed=torch.full((num_draws,), 11),
        frame=torch.arange(num_draws),
        num_codebooks=2,
        vocab_size=6,
    )
    logits = (2.0 * probabilities.log()).expand(num_draws, -1)
    table, total = torch.zeros(len(probabilities), 1), torch.zeros(num_draws, 1)
    codes, _ = pick(logits, sampling, codebook, table, total)
    counts = codes.bincount(minlength=6)
    # Equal probabilities keep the order of their ids.
    order = probabilities.argsort(descending=True, stable=True)[:kept]
    expected = torch.zeros(6)
    expected[order] = probabilities[order] / probabilities[order].sum() * num_draws
    assert counts[expected == 0].sum() == 0
    difference = (counts - expected)[order]
    assert (difference**2 / expected[order]).sum() < 20  # chi-square, 5 degrees: p < 0.002


def test_noise_is_gumbel_noise_without_visible_structure() -> None:
    noise = gumbel_noise(torch.tensor([0, 1, -1, 2**40]), torch.tensor([0, 0, 1, 7]), 15, 2048)
    assert noise.isfinite().all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(1.6449, abs=0.04)
    rows = noise.transpose(0, 1).reshape(4, -1)
    assert (torch.corrcoef(rows) - torch.eye(4)).abs().max() < 0.03
    assert (torch.corrcoef(noise.flatten(1)) - torch.eye(15)).abs().max() < 0.06
    assert (
        torch.corrcoef(torch.stack([noise[..., 1:].flatten(), noise[..., :-1].flatten()]))[
            0, 1
        ].abs()
        < 0.02
    )


def test_an_unknown_rotation_is_refused() -> None:
    config = Qwen3OmniMoeTalkerCodePredictorConfig(
        num_hidden_layers=1,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    )
    with pytest.raises(ValueError, match="'linear'"):
        CodePredictor(config)
