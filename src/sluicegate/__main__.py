"""`python -m sluicegate` is the command `sluicegate`."""

from sluicegate.cli.main import main

if __name__ == "__main__":  # False in the processes that multiprocessing starts.
    main()
