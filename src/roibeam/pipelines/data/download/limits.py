"""Limits of a download: what it may cost (connections, seconds, bytes, pixels, attempts), and its addresses.

A list of URLs, a redirect or a name server must not reach inside a network. The check of an address is made where the
socket is opened, on the address that it is opened for. So it holds for every redirect, for numbers written as names
("http://0x7f000001/") and for names that mean another address at each look-up.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, fields
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from roibeam.extraction.photos.decode import DEFAULT_MAX_PIXELS, LARGEST_MAX_PIXELS


@dataclass(frozen=True)
class DownloadLimits:
    """Limits of a download; defaults are for millions of URLs on as many hosts, from one machine.

    Attributes:
        connections: open at once.
        per_host: of these, to one host name.
        attempts: tries of one URL in all; only what may pass (no connection, 429, 500, a cut-off body) is tried again.
        connect_seconds: until a connection stands.
        stall_seconds: longest silence of a server.
        total_seconds: for one answer, whole; a server that sends a byte now and then is not silent.
        max_wait_seconds: longest Retry-After that is waited for; a URL whose host asks for more is given up, and the
            host with it after five such answers in a row.
        backoff_seconds: before the second attempt; doubled for each further one, times 0.5 to 1.5 at random.
        max_redirects: followed for one URL.
        max_bytes: of one image, also after decompression.
        max_pixels: of one image, by its header.
        min_side: pixels that the shorter side of an image must have; 0 takes all.
    """

    connections: int = 64
    per_host: int = 8
    attempts: int = 3
    connect_seconds: float = 10.0
    stall_seconds: float = 15.0
    total_seconds: float = 60.0
    max_wait_seconds: float = 60.0
    backoff_seconds: float = 1.0
    max_redirects: int = 5
    max_bytes: int = 20_000_000
    max_pixels: int = DEFAULT_MAX_PIXELS
    min_side: int = 0

    def __post_init__(self) -> None:
        may_be_zero = ("max_wait_seconds", "backoff_seconds", "max_redirects", "min_side")
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                raise ValueError(f"{field.name} is {value}, expected more than 0")
        if self.max_pixels > LARGEST_MAX_PIXELS:
            raise ValueError(f"max_pixels is {self.max_pixels}, expected at most {LARGEST_MAX_PIXELS}")


_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# Public by Python's lists, and yet internal or unassigned.
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
    """Whether it is an address of the public internet: not private, shared, loopback, link-local, multicast, reserved
    or one of `_REFUSED`.

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
    """Public addresses, and those of the networks that the user names. Raises ValueError if one is not a network.

    Args:
        allowed: networks such as "10.0.0.0/8" or "127.0.0.1".
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
        Raises PrivateAddressError if it must not be connected to."""
        family, kind, protocol, _, address = address_info
        if not self.allows(str(address[0])):
            raise PrivateAddressError
        return socket.socket(family=family, type=kind, proto=protocol)
