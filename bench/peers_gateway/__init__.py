"""Programs of the gateways' race: the servers behind them, our gateway, and FastMCP's proxy."""
