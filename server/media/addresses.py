"""Addresses that clients may send a server to: those of the public internet."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

GLOBAL_UNICAST = IPv6Network("2000::/3")
# Global by their registry, but not a place of their own, or not the internet's.
REFUSED_4 = (
    IPv4Network("192.0.0.0/24"),  # protocols' own, Oracle's metadata among them
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("168.63.129.16/32"),  # Azure's host, from inside of its machines
)
REFUSED_6 = (
    IPv6Network("2001::/23"),  # protocols' own, Teredo among them: an IPv4 address is in it
    IPv6Network("2002::/16"),  # 6to4: the same
    IPv6Network("3fff::/20"),  # documentation
)


def is_public(text: str) -> bool:
    """Returns whether an address is one host of the public internet, and has no other address in
    it.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in REFUSED_4)
    return _is_public_6(address)


def _is_public_6(address: IPv6Address) -> bool:
    if address.scope_id is not None or address not in GLOBAL_UNICAST:
        return False
    return not any(address in network for network in REFUSED_6)
