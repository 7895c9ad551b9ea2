"""Which replica a request is bound to, whatever comes and goes."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from omnistage.server.runtime.routes import Path, Routes
from omnistage.server.runtime.stage_link import StageLink


class NoChannel:
    """An end of a channel that nobody uses."""


def link_of(name: str) -> StageLink:
    return StageLink(name, NoChannel(), NoChannel())  # type: ignore[arg-type]


# What happens: a request comes, the oldest or the newest ends, a replica goes or is there again.
EVENTS = st.lists(
    st.one_of(
        st.sampled_from(["comes"] * 3 + ["oldest ends", "newest ends"]),
        st.tuples(st.sampled_from(["goes", "is there"]), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 3), st.integers(1, 3))
def test_a_request_goes_to_one_of_those_that_take_it_and_none_of_these_has_less_to_do(
    events: list[str | tuple[str, int]], num_talkers: int, num_vocoders: int
) -> None:
    async def run() -> None:
        stages = [
            [link_of(f"talker@{number}") for number in range(num_talkers)],
            [link_of(f"code2wav@{number}") for number in range(num_vocoders)],
        ]
        every = [link for links in stages for link in links]
        gone: set[StageLink] = set()
        routes, under_way = Routes(), list[Path]()
        for event in events:
            if event == "comes":
                open_now = [[link for link in links if link not in gone] for links in stages]
                if not all(open_now):
                    continue
                path = routes.choose(open_now)
                load = Counter(link for one in under_way for link in one)
                for link, there in zip(path, open_now, strict=True):
                    assert link in there
                    assert load[link] == min(load[one] for one in there)
                routes.begin(path)
                under_way.append(path)
            elif isinstance(event, str) and under_way:
                routes.end(under_way.pop(0 if event == "oldest ends" else -1))
            elif isinstance(event, tuple):
                change = gone.add if event[0] == "goes" else gone.discard
                change(every[event[1] % len(every)])

    asyncio.run(run())


@given(st.integers(1, 5), st.integers(1, 40))
def test_replicas_that_are_idle_take_turns(num_replicas: int, num_requests: int) -> None:
    async def run() -> None:
        links = [link_of(f"talker@{number}") for number in range(num_replicas)]
        routes, asked = Routes(), Counter[StageLink]()
        for _ in range(num_requests):
            path = routes.choose([links])
            routes.begin(path)
            routes.end(path)
            asked.update(path)
        assert max(asked.values()) - min(asked[link] for link in links) <= 1

    asyncio.run(run())


async def test_what_ended_counts_no_more() -> None:
    one, other = link_of("talker@0"), link_of("talker@1")
    routes = Routes()
    for path in ([one], [one], [other]):
        routes.begin(path)
    assert routes.choose([[one, other]]) == [other]
    routes.end([one])
    routes.end([one])
    assert routes.choose([[one, other]]) == [one]
