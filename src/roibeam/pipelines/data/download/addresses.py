"""Which addresses may be connected to: a list of URLs, a redirect or a name server must not reach inside a network.

The check is made where the socket is opened, on the address that it is opened for. So it holds for every redirect, for
numbers written as names ("http://0x7f000001/") and for names that mean another address each time they are asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# Public by Python's lists, and yet inside or nobody's.
_REFUSED = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's own services, seen from each of its machines
            "192.0.0.192/32",  # Oracle Cloud's
            "192.88.99.0/24",  # 6to4 relays, given up (RFC 7526)
            "3fff::/20",  # documentation (RFC 9637)
        ),
    )
)


class PrivateAddressError(OSError):
    """The host is at an address that is not public."""

    def __init__(self) -> None:
        # One text for all addresses of a host: the connector joins errors of different texts into one of no kind.
        super().__init__("not a public address")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether anybody on the internet may have it: not private, shared, loopback, link-local, multicast, reserved or
    one of `_REFUSED`.

    An IPv6 address that stands for an IPv4 address (mapped, 6to4, Teredo, NAT64) is as public as that one.
    """
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    if any(address in network for network in _REFUSED):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


class AddressRule:
    """Public addresses, and those of the networks that the user names.

    Args:
        allowed: networks such as "10.0.0.0/8" or "127.0.0.1".
    Raises:
        ValueError: if one is not a network.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed: list[IPv4Network | IPv6Network] = []
        for network in allowed:
            try:
                self._allowed.append(ip_network(network, strict=False))
            except ValueError:
                raise ValueError(f"--allow-private {network!r}: expected a network such as 10.0.0.0/8") from None

    def allows(self, address: str) -> bool:
        """
        Args:
            address: numeric, IPv6 with or without a scope ("fe80::1%eth0").
        """
        parsed = ip_address(address.partition("%")[0])
        return is_public(parsed) or any(parsed in network for network in self._allowed)

    def open_socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """A socket for this entry of `socket.getaddrinfo`, not yet connected; the connector connects it to no other.

        Raises:
            PrivateAddressError: if it must not be connected to.
        """
        family, kind, protocol, _, address = address_info
        if not self.allows(str(address[0])):
            raise PrivateAddressError
        return socket.socket(family=family, type=kind, proto=protocol)
