"""Arguments of a user's pipeline class: it gets them, and others are refused by name."""

from pathlib import Path
from typing import Any

import pytest
from diffusers import FluxPipeline

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.loading.weights import HOST


class Inked(FluxPipeline):  # type: ignore[misc]  # Diffusers has no types
    """With arguments beside its modules, as Diffusers gives them."""

    def __init__(
        self,
        scheduler: Any,
        vae: Any,
        text_encoder: Any,
        tokenizer: Any,
        text_encoder_2: Any,
        tokenizer_2: Any,
        transformer: Any,
        image_encoder: Any = None,
        feature_extractor: Any = None,
        strength: float = 0.5,
        colours: Any = None,
    ) -> None:
        texts = text_encoder, tokenizer, text_encoder_2, tokenizer_2
        super().__init__(scheduler, vae, *texts, transformer, image_encoder, feature_extractor)
        self.strength, self.colours = strength, colours


class Loader:
    """With a from_pretrained of its own."""

    @classmethod
    def from_pretrained(cls, folder: Path, dtype: Any, strength: float = 0.5) -> Any:
        """A pipeline that has it."""
        made = FluxPipeline.from_pretrained(folder, dtype=dtype)
        made.strength = strength
        return made


class OpenLoader:
    """One that takes anything."""

    @classmethod
    def from_pretrained(cls, folder: Path, **kwargs: Any) -> Any:
        """A pipeline that has the strength of them."""
        dtype, strength = kwargs.pop("dtype"), kwargs.pop("strength")
        made = FluxPipeline.from_pretrained(folder, dtype=dtype, **kwargs)
        made.strength = strength
        return made


def options(made: type | None, given: Any, **more: Any) -> LoadOptions:
    path = None if made is None else f"{__name__}.{made.__name__}"
    engine = {"pipeline_class": path, "custom_pipeline_args": given, "dtype": "float32", **more}
    return LoadOptions.of(engine)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("flux")
    write_tiny("flux", path)
    return path


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_class_of_diffusers_gets_what_its_init_takes(folder: Path, load_format: str) -> None:
    given = {"strength": 0.25, "colours": ["red", "blue"]}
    made = options(Inked, given, load_format=load_format).load(str(folder)).pipeline
    assert (made.strength, made.colours) == (0.25, ["red", "blue"])
    assert options(Inked, {}).load(str(folder)).pipeline.strength == 0.5


@pytest.mark.parametrize("made", [Loader, OpenLoader])
def test_a_from_pretrained_of_its_own_gets_them(folder: Path, made: type) -> None:
    assert options(made, {"strength": 0.25}).load(str(folder)).pipeline.strength == 0.25


def test_other_ranks_give_them_too(folder: Path) -> None:
    loaded = options(Inked, {"strength": 0.25}).load_denoisers(str(folder), HOST)
    assert loaded.pipeline.strength == 0.25


@pytest.mark.parametrize(
    ("made", "given", "says"),
    [
        (None, {"strength": 1}, "custom_pipeline_args: only with pipeline_class"),
        (Inked, ["strength"], "custom_pipeline_args: must be a mapping of arguments, not"),
        (Inked, {"strenght": 1}, r"custom_pipeline_args.strenght: no argument for .*strength"),
        (Inked, {"dtype": "float16"}, r"custom_pipeline_args.dtype: no argument for"),
        (Loader, {"colours": 1}, r"custom_pipeline_args.colours: .* its arguments: strength"),
        (OpenLoader, {"dtype": "float16"}, r"custom_pipeline_args.dtype: no argument for"),
    ],
)
def test_what_a_class_does_not_take_is_refused(made: type | None, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        options(made, given)


def test_a_module_is_no_argument(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"custom_pipeline_args.vae: a module, which"):
        options(Inked, {"vae": None}).load(str(folder))
