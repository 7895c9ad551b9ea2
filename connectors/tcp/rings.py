"""The two rings of a channel that two nodes share, by their names in a run directory."""

from omnistage.connectors.shm import ShmConnector

FAR = ".far"


def ring_name(address: str, is_senders: bool) -> str:
    """The sender opens the ring of the channel's own name, the receiver the other."""
    return address if is_senders else f"{address}{FAR}"


def renew_joined(rings: ShmConnector, name: str) -> None:
    """Renew a ring that a link has joined: what its other half holds is not known."""
    ring = rings.ring(name)
    wanted = ring.generation + ring.is_joined
    ring.release()
    rings.renew(name, wanted)
