"""Changes that commands have made in stages, for replicas that start afterwards."""

from collections.abc import Sequence

from omnistage.stage_configs.json_types import JsonMap

Arguments = JsonMap
Change = tuple[str, Arguments]  # a command, and what it was told

WEIGHTS, ADD, PIN, REMOVE = "load_weights", "add_lora", "pin_lora", "remove_lora"


class Changes:
    """Commands that make a replica as the others of its stage are: other weights, then adapters."""

    def __init__(self) -> None:
        self._weights: dict[str, Arguments] = {}
        self._adapters: dict[str, list[Change]] = {}

    def of(self, stage: str) -> list[Change]:
        """Returns what a replica is told when it is ready; nothing, where its configuration says
        all.
        """
        weights = [(WEIGHTS, self._weights[stage])] if stage in self._weights else []
        return [*weights, *self._adapters.get(stage, ())]

    def note(self, stage: str, command: str, arguments: Arguments) -> None:
        """Every replica of the stage has carried this out."""
        if command == WEIGHTS and arguments["path"] is not None:  # else the same ones again
            self._weights[stage] = arguments
        elif command in (ADD, PIN, REMOVE):
            told = self._adapters.get(stage, [])
            self._adapters[stage] = _with(told, command, arguments)


def without(missed: Sequence[Change], done: Change) -> tuple[Change, ...]:
    """Returns what a replica has still missed once it has done this: other weights replace all
    before.
    """
    command, arguments = done
    void = [WEIGHTS] if command == WEIGHTS and arguments["path"] is not None else []
    return tuple(one for one in missed if one != done and one[0] not in void)


def _with(told: list[Change], command: str, arguments: Arguments) -> list[Change]:
    """Without what the command makes void; the adapters of the configuration were not added."""
    name = arguments["name"]
    was_added = (ADD, name) in [(one, given["name"]) for one, given in told]
    void = {ADD: (ADD, PIN), PIN: (PIN,), REMOVE: (ADD, PIN)}[command]
    kept = [one for one in told if one[0] not in void or one[1]["name"] != name]
    return kept if command == REMOVE and was_added else [*kept, (command, arguments)]
