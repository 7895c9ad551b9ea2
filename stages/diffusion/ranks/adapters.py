"""LoRA adapters of a pipeline whose denoisers are on several ranks."""

from omnistage.stages.diffusion.loading.adapter_weights import AdapterWeights
from omnistage.stages.diffusion.merging.setting import Scales
from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.diffusion.ranks.peers import RankError
from omnistage.stages.diffusion.ranks.ranks import Ranks


class AdaptersOnRanks(AdapterWeights):
    """Adapters that are changed on all ranks, as far as they are the denoisers'."""

    def __init__(self, pipeline: Pipeline, ranks: Ranks) -> None:
        super().__init__(pipeline)
        self._ranks = ranks

    def load(self, key: str, path: str, weight_name: str | None) -> None:
        """On all, or on none."""
        super().load(key, path, weight_name)
        try:
            self._ranks.others("load_adapter", key, path, weight_name)
        except RankError:
            self.delete(key)
            raise

    def delete(self, key: str) -> None:
        """On all."""
        super().delete(key)
        self._ranks.follow("delete_adapter", key)

    def put(self, name: str, scales: Scales) -> None:
        """The others are told where something changes."""
        before = self._active.get(name)
        super().put(name, scales)
        if name in self._ranks.denoisers and self._active.get(name) != before:
            self._ranks.follow("put_adapters", name, scales)
