"""The second call of a step, where guidance makes a pipeline call its denoiser twice."""

from dataclasses import replace

from omnistage.stages.diffusion.merging.calls import Call, is_same


class Foresight:
    """Watches the denoiser's calls of one request.

    Such a pipeline calls with the prompt, waits for the result, and calls with the negative prompt.
    So two ranks could not share a step. But the second call is like the first one where the two
    were equal in the last step, and else like the last second call: it can be made beside the
    first one, before the pipeline asks for it.
    """

    def __init__(self) -> None:
        self._last: list[Call] = []  # the calls of the last step
        self._now: list[Call] = []
        self._has_erred = False

    def see(self, call: Call) -> None:
        """A call that is made."""
        self._now.append(call)
        if len(self._now) == 2:
            self._last, self._now = self._now, []

    def guess(self, call: Call) -> Call | None:
        """Returns what will follow this call, which is not seen yet; None: nobody knows."""
        if self._has_erred or self._now or not self._last:
            return None
        before, second = self._last
        if not (before.target is second.target is call.target):
            return None
        if not (before.arguments.keys() == second.arguments.keys() == call.arguments.keys()):
            return None
        own = [
            name
            for name, value in second.arguments.items()
            if not is_same(before.arguments[name], value)
        ]
        # What the two calls of a step do not share, such as the texts, is the same in each step.
        if not own or any(not is_same(before.arguments[n], call.arguments[n]) for n in own):
            return None
        arguments = {**call.arguments, **{name: second.arguments[name] for name in own}}
        return replace(call, arguments=arguments, size=second.size, key=second.key)

    def is_right(self, guess: Call, call: Call) -> bool:
        """Returns whether a call came as it was guessed; a request that did otherwise is not
        guessed.
        """
        is_right = (
            call.target is guess.target
            and call.modes == guess.modes
            and call.arguments.keys() == guess.arguments.keys()
            and is_same(call.arguments, guess.arguments)
        )
        self._has_erred |= not is_right
        return is_right
