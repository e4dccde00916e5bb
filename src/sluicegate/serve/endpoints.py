"""The HTTP endpoints of one gateway: one for everything and one for each profile, by path."""

import asyncio
from typing import Final

from sluicegate import http1
from sluicegate.config.model import GatewayConfig, HttpFront
from sluicegate.downstream.http import HttpEndpoint, caller_by_address
from sluicegate.downstream.http_guard import LOOPBACK, HostPolicy, HttpLimits
from sluicegate.downstream.http_response import HttpRequest
from sluicegate.errors import ConfigError
from sluicegate.gateway.gateway import Gateway
from sluicegate.runtime.identity import Identify, Refusal
from sluicegate.runtime.quota import Quota
from sluicegate.runtime.task_scope import TaskScope

_MAX_SHOWN: Final = 64


class Endpoints:
    """Answers HTTP requests, each at the endpoint of its path. `async with` opens and closes the endpoints."""

    def __init__(self, gateway: Gateway, identify: Identify = caller_by_address) -> None:
        """`identify` returns the caller of each request, for all endpoints."""
        self._gateway = gateway
        self._identify = identify
        self._endpoints: dict[str, HttpEndpoint] = {}
        self._dismissed: dict[HttpEndpoint, asyncio.Event] = {}
        # Clients are configured with the path once, so changes of it take effect with the next start. So do all other
        # settings of this front, also for profiles that are added later.
        self._http = gateway.config.http
        self._limits = _limits(gateway.config)
        self._streams = Quota(self._limits.streams, self._limits.streams_of_one)
        self._hold = gateway.config.limits.hold
        self._path = self._http.path.rstrip("/") or "/"
        # Each endpoint lives in a task of its own, so that one can end while the others go on.
        self._tasks = TaskScope()

    def __len__(self) -> int:
        """How many are open, including those that only finish their requests."""
        return len(self._dismissed)

    async def __aenter__(self) -> "Endpoints":
        await self._tasks.__aenter__()
        if refused := await self.follow():
            await self.__aexit__()
            raise ConfigError(refused[0])
        return self

    async def __aexit__(self, *error: object) -> None:
        self._tasks.cancel_all()
        await self._tasks.__aexit__(None, None, None)

    def listen(self, host: str, port: int) -> http1.Listener:
        """Listen at an address while the `async with` lasts. Raises OSError if the address cannot be bound."""
        limits = http1.Limits(body=self._gateway.config.limits.body)
        listener = http1.serve(self, host=host, port=port, limits=limits)
        listener.on_refused = self._gateway.governance.note_reject
        return listener

    async def follow(self) -> list[str]:
        """Open the endpoints of new profiles; those of removed profiles finish their requests.

        Returns the reasons why endpoints could not be opened.
        """
        refused: list[str] = []
        config, path = self._gateway.config, self._path
        wanted = {path: "", **{f"{path.rstrip('/')}/{name}": name for name in config.profiles}}
        for known in [known for known in self._endpoints if known not in wanted]:
            endpoint = self._endpoints.pop(known)
            endpoint.stop_taking()
            self._dismissed[endpoint].set()
        for place, profile in wanted.items():
            if place not in self._endpoints:
                try:
                    endpoint = self._made(place, profile)
                except ConfigError as problem:
                    refused.append(f"The profile {profile!r}: {problem.message}" if profile else problem.message)
                    continue
                opened = asyncio.Event()
                self._tasks.start(self._keep(endpoint, place, opened))
                await opened.wait()
        return refused

    def _made(self, place: str, profile: str) -> HttpEndpoint:
        return HttpEndpoint(
            self._gateway.handler(profile),
            path=place,
            hosts=_host_policy(self._http),
            hold=self._hold,
            limits=self._limits,
            streams=self._streams,
            sse=self._http.sse,
            identify=self._identify,
            is_able=lambda: self._gateway.is_able,
            not_found=self._unknown_profile,
        )

    async def _keep(self, endpoint: HttpEndpoint, place: str, opened: asyncio.Event) -> None:
        """Keep an endpoint open until its profile is removed, and for the drain time after that."""
        async with endpoint:
            self._endpoints[place] = endpoint
            dismissed = self._dismissed[endpoint] = asyncio.Event()
            opened.set()
            try:
                await dismissed.wait()
                await asyncio.sleep(self._gateway.config.limits.drain)
            finally:
                del self._dismissed[endpoint]

    def __call__(self, request: HttpRequest) -> None:
        (self._endpoints.get(request.path) or self._endpoints[self._path])(request)

    def _unknown_profile(self, request: HttpRequest) -> Refusal | None:
        """The refusal for a path below the endpoint's own; clients on this machine also learn which profiles exist."""
        config = self._gateway.config
        name = request.path.removeprefix(f"{self._path}/")
        if self._http.anyone_may_connect or name in ("", request.path):
            return None
        known = f"there are: {', '.join(config.profiles)}" if config.profiles else "sluicegate.toml has none"
        return Refusal(404, "not_found", f"There is no profile {name[:_MAX_SHOWN]!r}; {known}.")

    def stop_taking(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.stop_taking()

    def give_up(self) -> None:
        """Cancel all requests in progress, and answer that we stop."""
        for endpoint in self._dismissed:
            endpoint.give_up()


def _host_policy(http: HttpFront) -> HostPolicy:
    own = frozenset({http.host}) if http.anyone_may_connect else frozenset[str]()
    return HostPolicy(LOOPBACK | own | frozenset(http.allowed_hosts), frozenset(http.allowed_origins))


def _limits(config: GatewayConfig) -> HttpLimits:
    limits = config.limits
    return HttpLimits(
        streams_of_one=limits.streams_per_caller,
        sessions_of_one=limits.sessions_per_caller,
        session_idle=limits.session_idle,
        session_lifetime=limits.session_lifetime,
    )
