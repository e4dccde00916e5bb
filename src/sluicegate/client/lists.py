"""The four lists of a server, as this client reads them: typed, entry by entry."""

from typing import Final

from sluicegate.protocol.gathering import Kind
from sluicegate.protocol.read_types import (
    read_prompt,
    read_resource,
    read_resource_template,
    read_tool,
)

TOOLS: Final = Kind("tools/list", "tools", read_tool, lambda tool: tool.name)
PROMPTS: Final = Kind("prompts/list", "prompts", read_prompt, lambda prompt: prompt.name)
RESOURCES: Final = Kind("resources/list", "resources", read_resource, lambda resource: resource.uri)
TEMPLATES: Final = Kind(
    "resources/templates/list", "resourceTemplates", read_resource_template, lambda template: template.uri_template
)
