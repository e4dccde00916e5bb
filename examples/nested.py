"""Activations inside an activation: `solar.planets`, `solar.earth.info`, `solar.mars.info`."""

import sluicegate

DISTANCES = {"earth": 150, "mars": 228}


class Planet:
    def __init__(self, name: str) -> None:
        self.name = name

    async def info(self) -> str:
        """How far it is from the sun."""
        return f"{self.name} is {DISTANCES[self.name]} million km from the sun."


@sluicegate.activation("solar")
class Solar:
    """The sun and its planets."""

    async def planets(self) -> list[str]:
        """The names of the planets."""
        return list(DISTANCES)

    def children(self) -> list[str]:
        return list(DISTANCES)

    def child(self, name: str) -> Planet:
        return Planet(name)
