"""Generators of a batch while its tokens are sampled."""

import torch

from omnistage.stages.vllm.workers.seeds import Spare, kept_tokens_only


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(generator: torch.Generator) -> int:
    return int(torch.randint(1 << 31, (), generator=generator))


def test_a_dropped_token_costs_its_request_no_draw() -> None:
    generators = {0: seeded(3), 1: seeded(4)}
    with kept_tokens_only(generators, [True, False], Spare()):
        draw(generators[0])
        generators[0].set_offset(generators[0].get_offset() - 4)
        first = draw(generators[1])
    drawn = [draw(generators[row]) for row in (0, 1)]
    assert [drawn[0], first] == [draw(seeded(3)), draw(seeded(4))]
    assert drawn[1] != first


def test_rows_without_a_seed_have_a_generator_only_beside_rows_with_one() -> None:
    generators = {1: seeded(3)}
    own = dict(generators)
    spare = Spare()
    with kept_tokens_only(generators, [False] * 3, spare):
        assert generators == {0: spare, 1: own[1], 2: spare}
    assert generators == own
    unseeded: dict[int, torch.Generator] = {}
    with kept_tokens_only(unseeded, [True, False], spare):
        assert unseeded == {}


def test_spare_generators_are_not_alike() -> None:
    spare = Spare()
    assert len({draw(spare), draw(spare), draw(Spare())}) == 3
