"""How the tools of a server may be called in rules, settings, calls and commands. Pure.

A server has several names: the one in its file, its key and its prefix. An activation itself calls its tools by their
whole names, `ticker.watch`; clients see `ticker__watch`, since model APIs refuse dots.
"""

from collections.abc import Iterable, Iterator


def spellings(servers: Iterable[str], name: str) -> tuple[str, ...]:
    """The names of a tool or prompt without its server, which has these names.

    A tool of an activation is `bash.execute` and `execute`; one further inside, `earth.info` and `earth__info`.
    """
    for server in servers:
        if (short := name.removeprefix(f"{server}.")) != name:
            return tuple(dict.fromkeys((name, short, short.replace(".", "__"))))
    return (name,)


def own_names(servers: Iterable[str], name: str) -> tuple[str, ...]:
    """The names of a tool in the settings of its server; those of an activation begin with its namespace or not."""
    forms = spellings(servers, name)
    return forms if len(forms) == 1 else (*forms, name.replace(".", "__"))


def whole_names(servers: Iterable[str], name: str) -> Iterator[str]:
    """All names of a tool or prompt, with its server and without."""
    servers = list(servers)
    for form in spellings(servers, name):
        yield form
        for server in servers:
            yield from (f"{server}__{form}", f"{server}.{form}")
