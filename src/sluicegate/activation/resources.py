"""A resource: a function that returns what is behind a URI, or behind all URIs of a template."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from sluicegate.activation.binding import Binding
from sluicegate.activation.call import Call
from sluicegate.activation.content import contents_of, echo, members
from sluicegate.activation.invoke import Function, awaited, errors_shown_safely
from sluicegate.activation.schema import InvalidArguments
from sluicegate.activation.templates import Template
from sluicegate.activation.tools import check_options, function_name
from sluicegate.errors import UnknownTarget
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params

_uri: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


class ResourceOptions(TypedDict, total=False):
    """What an author may say of a resource beyond URI and function. `size` is in bytes, and not for templates."""

    name: str
    title: str
    description: str
    mime_type: str
    size: int
    annotations: Mapping[str, object]
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]


class Resource:
    """A function behind a URI, or behind a URI template if there is a `{variable}` in it.

    Raises:
        TypeError: the function's parameters are not the variables of the URI, or an option that there is not.
        ValueError: it is no URI, or the template cannot be read.
    """

    def __init__(self, uri: str, function: Function, options: ResourceOptions) -> None:
        check_options("resource", options, ResourceOptions)
        if not _uri.fullmatch(uri):
            raise ValueError(f"{uri!r} is no URI for a resource: it begins with a scheme, as 'note://today' does")
        self.uri = uri
        self._outcome = awaited(function)
        self._mime_type = options.get("mime_type")
        self._binding = Binding(function)
        self.template = Template(uri) if "{" in uri or "}" in uri else None
        names = set(self.template.names if self.template is not None else ())
        if unbound := sorted(names - self._binding.properties.keys()):
            raise TypeError(f"the resource {uri} has a variable '{unbound[0]}' that its function does not take")
        if unknown := sorted(self._binding.required - names):
            raise TypeError(f"the resource {uri} has no variable for the parameter '{unknown[0]}' of its function")
        self.definition = members(
            uri=uri if self.template is None else None,
            uri_template=uri if self.template is not None else None,
            name=options.get("name") or function_name(function, "resource"),
            title=options.get("title"),
            description=options.get("description") or self._binding.description,
            mime_type=self._mime_type,
            size=options.get("size") if self.template is None else None,
            annotations=options.get("annotations"),
            icons=options.get("icons"),
            meta=options.get("meta"),
        )

    async def read(self, uri: str, variables: Mapping[str, str], exchange: Exchange) -> Params:
        """The result of reading it.

        Raises:
            UnknownTarget: the function returned None, or a variable is no value of its type: nothing is there.
            ToolError: the function failed.
        """
        call = Call(exchange)
        try:
            values = self._binding.bind(variables, call)
        except InvalidArguments:
            raise not_found(uri) from None
        with errors_shown_safely(f"The resource {echo(uri)}"):
            contents = contents_of(await self._outcome(**values), uri, self._mime_type)
        call.end()
        if not contents:
            raise not_found(uri)
        return {"contents": contents}


def not_found(uri: str) -> UnknownTarget:
    """The refusal of a URI behind which there is nothing."""
    return UnknownTarget(f"Resource not found: {echo(uri)}", data={"uri": uri})
