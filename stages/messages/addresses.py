"""The names of a run's channels: each is one way, from one process to another."""

GATEWAY = "gateway"


def requests_address(stage: str) -> str:
    """From the gateway to a stage's process: messages.to_stage."""
    return f"{GATEWAY}.{stage}"


def outputs_address(stage: str) -> str:
    """From a stage's process to the gateway: messages.to_gateway."""
    return f"{stage}.{GATEWAY}"


def opens_address(source: str, target: str) -> str:
    """Returns what is said of requests along an edge, between the stages' processes:
    messages.edge.
    """
    return f"{source}.{target}.open"


def feed_address(source: str, target: str) -> str:
    """Tokens along an edge, from the process of its source: messages.edge.

    From a stage to itself: from its process to its own engine.
    """
    return f"{source}.{target}.feed"


def rows_address(source: str, target: str) -> str:
    """Rows and codes along an edge, from the engine of its source: messages.edge."""
    return f"{source}.{target}.rows"


def lane_addresses(address: str, sources: int = 1, targets: int = 1) -> list[list[str]]:
    """Returns the addresses of a channel between lanes: one for each pair, by source and target."""
    if sources == targets == 1:
        return [[address]]
    return [
        [f"{address}.{source}.{target}" for target in range(targets)] for source in range(sources)
    ]


def ends_of(address: str) -> tuple[str, str, str]:
    """From where a channel goes, to where, and which it is of the channels between the two."""
    source, target, *kind = address.split(".")
    if kind:
        return source, target, kind[0]
    return source, target, "requests" if source == GATEWAY else "outputs"


def is_end_of(stage: str, address: str) -> bool:
    """Returns whether the stage has an end of the channel."""
    return stage in address.split(".")[:2]
