"""The HTTP endpoints of one gateway: one for all of it, and one for each profile, told apart by the whole path."""

import asyncio
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.config import GatewayConfig, HttpFront
from sluicegate.downstream.doors import LOOPBACK, NOT_FOUND, Doors, Refusal
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_streams import HttpRequest, refuse
from sluicegate.downstream.places import HttpLimits
from sluicegate.errors import ConfigError
from sluicegate.fronts.beginning import Beginning
from sluicegate.gateway import Gateway

_LONGEST_SHOWN: Final = 64


class Endpoints:
    """What answers HTTP requests, each at the endpoint of its path. `async with` opens and closes them."""

    def __init__(self, gateway: Gateway, beginning: Beginning) -> None:
        self._gateway = gateway
        self._beginning = beginning
        self._endpoints: dict[str, HttpEndpoint] = {}
        self._dismissed: dict[HttpEndpoint, asyncio.Event] = {}
        # Where we are is told to clients once: another path takes effect with the next start. So does all else that is
        # said of this front, for a profile that comes later as for those that are there.
        self._http = gateway.config.http
        self._limits = _limits(gateway.config)
        self._hold = gateway.config.limits.hold
        self._path = self._http.path.rstrip("/") or "/"
        # Each endpoint lives in a task of its own, so that one can end while the others go on.
        self._tasks = TaskScope()

    def __len__(self) -> int:
        """How many are open, with those that only finish what they have begun."""
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

    async def follow(self) -> list[str]:
        """Open the endpoints of profiles that are new; those of profiles that are gone finish what they have begun.

        Of each that cannot be opened, the reason.
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
            self._beginning.handler(profile),
            path=place,
            doors=_doors(self._http),
            hold=self._hold,
            limits=self._limits,
            beside=self._endpoints.get(self._path),
            sse=self._http.sse,
        )

    async def _keep(self, endpoint: HttpEndpoint, place: str, opened: asyncio.Event) -> None:
        """Have an endpoint open until its profile is gone, and for as long as its calls then may take."""
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
        """Answer a request."""
        endpoint = self._endpoints.get(request.path)
        if endpoint is not None:
            endpoint(request)
        elif request.path.removeprefix(f"{self._path}/") not in ("", request.path):
            self._refuse_profile(request)
        else:
            self._endpoints[self._path](request)

    def _refuse_profile(self, request: HttpRequest) -> None:
        """Say that there is no such profile, and to whoever may know which there are."""
        config = self._gateway.config
        refusal = _doors(self._http).check(request.headers) or NOT_FOUND
        if refusal is NOT_FOUND and not self._http.anyone_may_connect:
            known = f"there are: {', '.join(config.profiles)}" if config.profiles else "sluicegate.toml has none"
            name = request.path[len(self._path) + 1 :][:_LONGEST_SHOWN]
            refusal = Refusal(404, "not_found", f"There is no profile {name!r}; {known}.")
        refuse(request, refusal)

    def stop_taking(self) -> None:
        """Begin nothing from now on."""
        for endpoint in self._endpoints.values():
            endpoint.stop_taking()

    def give_up(self) -> None:
        """Cancel what is under way, and tell those who wait for it."""
        for endpoint in self._dismissed:
            endpoint.give_up()


def _doors(http: HttpFront) -> Doors:
    own = frozenset({http.host}) if http.anyone_may_connect else frozenset[str]()
    return Doors(LOOPBACK | own | frozenset(http.allowed_hosts), frozenset(http.allowed_origins))


def _limits(config: GatewayConfig) -> HttpLimits:
    limits = config.limits
    return HttpLimits(
        calls=limits.in_flight,
        calls_of_one=limits.in_flight_per_caller,
        streams_of_one=limits.streams_per_caller,
        sessions_of_one=limits.sessions_per_caller,
        session_idle=limits.session_idle,
        session_lifetime=limits.session_lifetime,
    )
