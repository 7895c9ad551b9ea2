"""Commands to running stages, for /admin and for programs: to whom they go, what is answered."""

import asyncio
from collections.abc import Sequence

import msgspec

from omnistage.server.common.errors import ApiError, invalid
from omnistage.server.runtime.command import check_command
from omnistage.server.runtime.runtime import Runtime
from omnistage.server.runtime.stage_link import StageLink
from omnistage.server.tasks.command_fields import AddLora, OfStages, Scale
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_gateway import Lora

Answer = JsonMap
NOT_PROFILING = "not_profiling"  # the code of a stage that was told to end what it does not do


class StageCommands:
    """Hands commands to stages and puts their answers together."""

    def __init__(self, runtime: Runtime) -> None:
        self._fleet = runtime.fleet
        self._draining = runtime.draining
        self._scaling = runtime.scaling

    async def send(self, command: str, asked: OfStages) -> Answer:
        """Send a command to the stages that are meant; if none is, to those that take it.

        It goes to every replica of them, or to none if one does not take it.
        """
        links = self._named(asked) or self._accepting(command)
        for link in links:
            check_command(link, command)
        sending = (self._send(link, command, asked.arguments) for link in links)
        answers = await asyncio.gather(*sending, return_exceptions=True)
        if command == "stop_profile":
            answers = with_no_files(answers)
        for answer in answers:
            if isinstance(answer, BaseException):
                if isinstance(asked, AddLora):
                    await self._take_back(asked, links, answers)
                raise answer
        self._fleet.note_change(links, command, asked.arguments)
        return {"stages": dict(zip((link.name for link in links), answers, strict=True))}

    async def _send(self, link: StageLink, command: str, arguments: Answer) -> Answer:
        answer = await self._fleet.commander.send(link, command, arguments)
        if link.record.loras is not None and "loras" in answer:
            self._fleet.note_loras(link, msgspec.convert(answer["loras"], list[Lora]))
        return answer

    async def _take_back(
        self, asked: AddLora, links: Sequence[StageLink], answers: Sequence[Answer | BaseException]
    ) -> None:
        """Rolls back: if one replica refused the adapter, removes it from the others.

        One that has ended meanwhile has lost it.
        """
        refused = {
            link.stage
            for link, answer in zip(links, answers, strict=True)
            if isinstance(answer, BaseException)
        }
        removing = (
            self._send(link, "remove_lora", {"name": asked.name})
            for link, answer in zip(links, answers, strict=True)
            if link.stage in refused and not isinstance(answer, BaseException)
        )
        await asyncio.gather(*removing, return_exceptions=True)

    async def send_drained(self, command: str, asked: OfStages) -> Answer:
        """Send it once no request is in the stages that are meant: all of the graph if none is."""
        links = self._meant(asked)
        await self._draining.run(links, command, asked.arguments)
        return asleep(links)

    def taken_by(self, command: str, asked: OfStages) -> list[str]:
        """The stages that `send_drained` would send it to; ApiError if one does not take it."""
        links = self._meant(asked)
        for link in links:
            check_command(link, command)
        return list(dict.fromkeys(link.stage for link in links))

    async def scale(self, asked: Scale) -> Answer:
        """Have so many replicas of a stage; raises ApiError."""
        stages = self._fleet.graph.stages
        if asked.stage not in stages:
            raise invalid("stage", f"is no stage; allowed: {', '.join(stages)}")
        most = stages[asked.stage].most_replicas
        if asked.replicas > most:
            raise invalid("replicas", f"{asked.stage} has at most {most}; its max_replicas says so")
        await self._scaling.scale(asked.stage, asked.replicas)
        links = self._fleet.replicas_of(asked.stage)
        return {"stages": {asked.stage: {"replicas": [link.name for link in links]}}}

    def _meant(self, asked: OfStages) -> list[StageLink]:
        return self._named(asked) or list(self._fleet.stages.values())

    def _named(self, asked: OfStages) -> list[StageLink]:
        known, names = self._fleet.graph.stages, asked.stages or ()
        for index, name in enumerate(names):
            if name not in known:
                allowed = ", ".join(known)
                raise invalid(f"stages[{index}]", f"is no stage; allowed: {allowed}")
        return [link for name in dict.fromkeys(names) for link in self._fleet.replicas_of(name)]

    def _accepting(self, command: str) -> list[StageLink]:
        """The stages that take a command; ApiError, with a reason of one of them, if none does.

        With all of their replicas: one that still loads has not said what it takes.
        """
        links = self._fleet.stages.values()
        accepting = {link.stage for link in links if not link.record.commands.get(command, "no")}
        if not accepting:
            refusing = [link for link in links if command in link.record.commands]
            check_command((refusing or list(links))[0], command)
        return [link for link in links if link.stage in accepting]


def with_no_files(answers: Sequence[Answer | BaseException]) -> list[Answer | BaseException]:
    """A stage without a profile to end, such as one that started again, has no `files`.

    It would else take the others' from them; if no stage has a profile, that is the answer.
    """
    is_none = [isinstance(one, ApiError) and one.code == NOT_PROFILING for one in answers]
    if all(is_none):
        return list(answers)
    return [{"files": []} if no else one for no, one in zip(is_none, answers, strict=True)]


def asleep(links: Sequence[StageLink]) -> Answer:
    """Returns what of each replica sleeps."""
    return {"stages": {link.name: {"asleep": list(link.record.asleep)} for link in links}}
