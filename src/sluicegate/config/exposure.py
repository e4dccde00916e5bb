"""Who could reach a gateway that listens at an address."""

import ipaddress

from sluicegate.config.values import HttpFront


def exposure(http: HttpFront) -> str | None:
    """Why a gateway that does not ask callers who they are must not listen there (threats T6); None if it may."""
    if http.anyone_may_connect or is_loopback(http.host):
        return None
    return (
        f'With host = "{http.host}" anyone on the network could call every tool. Listen on 127.0.0.1, '
        "or say anyone_may_connect = true under [http]."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
