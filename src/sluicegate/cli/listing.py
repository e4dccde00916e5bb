"""What `tools`, `resources` and `prompts` have in common: ask for what is offered, show it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluicegate.cli.reaching import Kind, Offered
    from sluicegate.config import GatewayConfig, Places

Row = Callable[["Offered"], Sequence[str]]


def show_offers(
    places: "Places", kinds: Sequence["Kind"], server: str | None, head: Sequence[str], row: Row, *, as_json: bool
) -> None:
    """Print what is offered of some kinds, of one server or of all."""
    from sluicegate.cli.running import run

    run(_work(places, kinds, server, head, row, as_json))


async def _work(
    places: "Places", kinds: Sequence["Kind"], server: str | None, head: Sequence[str], row: Row, as_json: bool
) -> int:
    from sluicegate.cli.reaching import reached
    from sluicegate.cli.render import say, show_json, show_rows

    async with reached(places, choose=only(server)) as gateway:
        name = (await gateway.server(server)).name if server else ""
        offers = [offer for kind in kinds for offer in await gateway.offers(kind, name)]
        report = await gateway.report()
    if as_json:
        show_json([{**offer.definition, "server": offer.server, "own": offer.own} for offer in offers])
    elif offers:
        show_rows(head, [row(offer) for offer in offers])
    away = [each.name for each in report.servers if each.state not in ("ready", "disabled")]
    away = [each for each in away if name in ("", each)]
    if away:
        say(f"without {', '.join(away)}, not ready now; `sluicegate status` says why.")
    elif not offers:
        say("there are none.")
    return 0


def only(server: str | None) -> "Callable[[GatewayConfig], Sequence[str]] | None":
    """Which servers have to be started to know what one of them offers."""
    if server is None:
        return None

    def choose(config: "GatewayConfig") -> Sequence[str]:
        # With bare names, what one is called depends on all others.
        if config.naming == "collide":
            return ()
        return [each.name for each in config.servers.values() if server in (each.name, each.key, each.prefix)]

    return choose
