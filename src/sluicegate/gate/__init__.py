"""What stands between the clients and the router: each module is a `Step`, chained once around the router."""
