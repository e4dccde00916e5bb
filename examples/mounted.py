"""An MCP server mounted in a FastAPI app. Run it with `uvicorn mounted:app`; clients connect to /tools/mcp."""

from fastapi import FastAPI

import sluicegate

server = sluicegate.Server("stock", version="1.0")
stock = {"apples": 3, "pears": 5}


@server.tool
async def take(what: str, amount: int):
    """Take something out of stock, one piece at a time."""
    if stock.get(what, 0) < amount:
        raise sluicegate.ToolError(f"There are only {stock.get(what, 0)} {what}.")
    for taken in range(1, amount + 1):
        stock[what] -= 1
        yield sluicegate.Progress(taken, total=amount)
    yield f"{stock[what]} {what} are left"


mcp = sluicegate.AsgiApp(server, hosts=["localhost", "127.0.0.1"])
app = FastAPI(lifespan=mcp.lifespan)
app.mount("/tools", mcp)


@app.get("/stock/{what}")
async def read_stock(what: str) -> int:
    return stock.get(what, 0)
