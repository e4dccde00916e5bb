"""The command `sluicegate`: a file for each of its commands. Data goes to stdout, talk to stderr."""
