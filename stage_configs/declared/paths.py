"""The order of a graph's stages, and the way to some of them: every request asks several times."""

from functools import lru_cache

StageNames = tuple[str, ...]
Ends = tuple[tuple[str, str], ...]  # of each edge, its source and its target
NUM_KEPT = 1024


@lru_cache(maxsize=NUM_KEPT)
def ordered(names: StageNames, edges: Ends) -> StageNames:
    """Stages after all that feed them; those in a cycle are left out."""
    done: list[str] = []
    while ready := [
        name
        for name in names
        if name not in done and all(source in done for source, target in edges if target == name)
    ]:
        done += ready
    return tuple(done)


@lru_cache(maxsize=NUM_KEPT)
def path_to(names: StageNames, edges: Ends, last: frozenset[str]) -> StageNames:
    """These stages and all that feed them, in order."""
    order = ordered(names, edges)
    needed = set(last)
    for name in reversed(order):
        if name in needed:
            needed |= {source for source, target in edges if target == name}
    return tuple(name for name in order if name in needed)


@lru_cache(maxsize=NUM_KEPT)
def entries_of(names: StageNames, edges: Ends, last: frozenset[str]) -> StageNames:
    """Returns the stages of the path to these that no edge leads to."""
    targets = {target for _, target in edges}
    return tuple(name for name in path_to(names, edges, last) if name not in targets)
