"""`sluicegate status` on a terminal: a table, and sentences below it."""

from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from sluicegate.cli.output import STATES, about, as_sentence, clean, fitting, on_terminal, show, table
from sluicegate.cli.status import COLUMNS, NO_GATEWAY, reason, row, sentences
from sluicegate.control.reports import GatewayReport

_NUMBERS: Final = ("tools", "calls", "errors", "latency")
_SPARED: Final = ("transport", "latency", "errors", "protocol", "calls")
"""The columns that a narrow terminal drops, in this order."""


class LivePage:
    """A page that is drawn again and again."""

    def __init__(self) -> None:
        self._live = Live(console=on_terminal(), auto_refresh=False, screen=False)

    def __enter__(self) -> "LivePage":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, report: GatewayReport) -> None:
        self._live.update(_page(report), refresh=True)

    def wait(self) -> None:
        self._live.update(Text(f"{NO_GATEWAY[0].upper()}{NO_GATEWAY[1:]}"), refresh=True)


def show_page(report: GatewayReport) -> None:
    """Print the page once."""
    show(_page(report))


def _page(report: GatewayReport) -> Group:
    parts: list[RenderableType] = []
    if report.address:
        places = [f"{report.address}  ({report.root})"]
        places += [f"{report.address.rstrip('/')}/{name}  (profile {name})" for name in report.profiles]
        parts.append(Text("\n".join(places) + "\n", style="dim"))
    if report.servers:
        rows = [row(server) for server in report.servers]
        parts.append(table(*fitting(COLUMNS, rows, _SPARED, on_terminal().width), numbers=_NUMBERS))
    else:
        parts.append(Text("No servers are configured: put them into .mcp.json, or import them: sluicegate import"))
    for server in report.servers:
        if why := reason(server):
            text = Text(clean(about(server.name, why)), style="dim" if server.state == "disabled" else "")
            text.stylize(STATES.get(server.state, ""), 0, len(server.name))
            parts += [Text(), _hanging(text)]
            if details := as_sentence(server.details):
                parts.append(Padding(Text(clean(details), style="dim"), (0, 0, 0, 2)))
    for sentence in sentences(report):
        parts += [Text(), _hanging(Text(clean(sentence)))]
    return Group(*parts)


def _hanging(text: Text) -> RenderableType:
    """The text with all lines but the first indented."""
    lines = text.wrap(on_terminal(), on_terminal().width - 2)
    return Group(*(Padding(line, (0, 0, 0, 2 if number else 0)) for number, line in enumerate(lines)))
