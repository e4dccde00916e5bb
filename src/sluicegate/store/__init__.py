"""What is remembered: `base` has the Protocols that rooms know, the other modules the stores behind them."""
