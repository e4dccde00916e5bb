"""A gateway as a process: starts its servers, opens its listeners, follows its files, and answers the commands."""
