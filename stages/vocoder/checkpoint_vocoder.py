"""Vocoders that are one model of a checkpoint: how they are loaded, measured and read again."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Self

import torch

from omnistage.stages.vocoder.code_decoder import CodeDecoder, FrameForm
from omnistage.stages.vocoder.control import Model
from omnistage.stages.vocoder.decoder import Decoder
from omnistage.stages.vocoder.engine import DecoderEngine
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.vocoder.stage import DecoderStage
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.state import StateLayout
from omnistage.stages.vocoder.streams import Limits
from omnistage.stages.worker.stage import StagePorts


class CheckpointVocoder(CodeDecoder, Generic[Model]):
    """Owns a model's weights and the state of up to `num_slots` streams.

    A family's says how its model is read, what layers it has, and what they compute (`forward`).
    """

    def __init__(self, model: Model, num_slots: int) -> None:
        self.model = model
        self.weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
        layout = StateLayout()
        codec = self.make_layers(model, layout)
        super().__init__(codec, layout, num_slots, next(model.parameters()))

    @abstractmethod
    def make_layers(self, model: Model, layout: StateLayout) -> FrameForm:
        """Make the layers, each of which reserves its region of the layout; returns its frames."""

    @staticmethod
    @abstractmethod
    def read(model: str, device: torch.device, dtype: torch.dtype, *, has_weights: bool) -> Model:
        """The model of a checkpoint folder or hub name; without weights, with random ones."""

    @staticmethod
    @abstractmethod
    def empty(model: str, dtype: torch.dtype) -> Model:
        """The model's shapes alone, on the meta device."""

    @classmethod
    def from_checkpoint(
        cls,
        model: str,
        device: torch.device,
        dtype: torch.dtype,
        num_slots: int,
        *,
        has_weights: bool = True,
    ) -> Self:
        """Load the vocoder of a checkpoint folder or hub name."""
        return cls(cls.read(model, device, dtype, has_weights=has_weights), num_slots)

    @classmethod
    def memory(cls, model: str, dtype: torch.dtype, num_slots: int) -> dict[str, int]:
        """Bytes that such a vocoder holds, by what for; nothing is loaded."""
        vocoder = cls(cls.empty(model, dtype), num_slots=1)
        return {"weights": vocoder.weight_bytes, "slots": num_slots * vocoder.slots.bytes_each}

    @classmethod
    def engine(cls, model: str, stage: str, options: DecoderOptions) -> DecoderEngine[Slot]:
        """The vocoder of a stage, in its engine; raises DoesNotFit before anything is loaded."""
        device = options.fitting_device(stage, partial(cls.memory, model))
        vocoder = cls.from_checkpoint(
            model, device, options.torch_dtype, options.num_slots, has_weights=options.has_weights
        )
        return DecoderEngine(vocoder, Limits(batch_streams=options.max_batch))


@dataclass(frozen=True, slots=True)
class CheckpointWeights(Generic[Model]):
    """How a stage reads its vocoder's weights again, for its commands."""

    vocoder: type[CheckpointVocoder[Model]]
    folder: str
    options: DecoderOptions

    @property
    def are_stored(self) -> bool:
        """Returns whether they are the checkpoint's, and no dummy weights."""
        return self.options.has_weights

    def model_of(self, decoder: Decoder[Slot]) -> Model:
        """Returns what the stage's vocoder was made of."""
        assert isinstance(decoder, self.vocoder)
        return decoder.model

    def read(self, folder: str, device: torch.device, *, are_stored: bool) -> Model:
        """The model of a checkpoint folder or hub name."""
        dtype = self.options.torch_dtype
        return self.vocoder.read(folder, device, dtype, has_weights=are_stored)

    def decoder(self, model: Model) -> CheckpointVocoder[Model]:
        """The stage's vocoder."""
        return self.vocoder(model, self.options.num_slots)

    def nothing(self) -> CheckpointVocoder[Model]:
        """Shapes alone, on the meta device."""
        return self.vocoder(self.vocoder.empty(self.folder, self.options.torch_dtype), num_slots=1)


class CheckpointVocoderStage(DecoderStage):
    """Codec frames in, PCM out; a family's says by which vocoder."""

    vocoder: ClassVar[type[CheckpointVocoder[Any]]]

    def load(self, ports: StagePorts) -> DecoderEngine[Slot]:
        """The checkpoint's vocoder."""
        return self.vocoder.engine(ports.model, ports.name, DecoderOptions(**ports.engine))

    def weights(self, ports: StagePorts) -> CheckpointWeights[Any]:
        """The checkpoint's, or another's."""
        return CheckpointWeights(self.vocoder, ports.model, DecoderOptions(**ports.engine))
