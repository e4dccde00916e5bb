"""`python -m sluicegate` is the command `sluicegate`."""

from sluicegate.cli.main import main

if __name__ == "__main__":  # Not so in the processes that a tool starts by multiprocessing.
    main()
