"""What a check of an audit log found."""

import msgspec


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong in the chain of a writer."""

    writer: int
    file: str
    row: int
    """The first bad row; 0 if a whole file is."""
    until: int = 0
    """The last of several bad rows; 0 if only the first one is known."""
    problem: str

    def __str__(self) -> str:
        if not self.row:
            return f"{self.file} {self.problem}"
        if self.until > self.row:
            return f"{self.file}: rows {self.row} to {self.until} are {self.problem}"
        return f"{self.file}: row {self.row} {'is ' if self.until else ''}{self.problem}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was verified."""

    rows: int = 0
    files: int = 0
    checkpoints: int = 0
    signed: int = 0
    """Rows up to the last checkpoint of each writer."""
    faults: list[Fault] = []
    """What is missing comes first."""
    notes: list[str] = []
    """Sentences about what is no fault: what a power loss left unfinished, and what cannot be proven."""
