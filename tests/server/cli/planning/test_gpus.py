"""GPUs as they are typed."""

import pytest

from omnistage.server.cli.planning.gpus import known_kinds, read_gpus


@pytest.mark.parametrize(
    ("typed", "count", "name"),
    [("8xH200", 8, "H200"), ("h200", 1, "H200"), ("24x80GB", 24, "H100"), ("2X180gb", 2, "B200")],
)
def test_gpus_are_a_number_and_a_kind(typed: str, count: int, name: str) -> None:
    gpus = read_gpus(typed)
    assert (gpus.count, gpus.kind.name) == (count, name)


@pytest.mark.parametrize(
    "typed", ["", "0xH200", "8x", "H201", "8 x H200", "-1xH200", "8xH200,2xL4"]
)
def test_other_words_are_refused_with_the_kinds_that_there_are(typed: str) -> None:
    with pytest.raises(ValueError, match=r"8xH200 or 24x80GB; kinds: H200, H100, 80GB"):
        read_gpus(typed)


def test_every_kind_has_one_meaning() -> None:
    kinds = {kind.name: kind for kind in known_kinds().values()}
    names = [name for kind in kinds.values() for name in (kind.name, *kind.also)]
    assert len(names) == len(set(names)) == len(known_kinds())
    sizes = [name for name in names if name.endswith("GB")]
    assert all(known_kinds()[name].memory_gb == float(name.removesuffix("GB")) for name in sizes)
