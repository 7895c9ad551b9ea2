"""Guidance of a video and its audio: by text, faces and voices."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scales:
    """Holds how much guidance moves: the video by text and faces, the audio by voices."""

    text: float
    faces: float
    audio_text: float
    voices: float

    def moved(self, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Return velocities, of those of the four rows of each video."""
        whole, wordless, faceless, _ = video.float().chunk(4)
        shown = wordless + self.text * (whole - wordless) + self.faces * (whole - faceless)
        whole, wordless, _, voiceless = audio.float().chunk(4)
        heard = wordless + self.audio_text * (whole - wordless) + self.voices * (whole - voiceless)
        return shown, heard
