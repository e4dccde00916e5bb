"""Compares an audit log with copies of its checkpoints elsewhere."""

import os
from collections import defaultdict
from collections.abc import Sequence

from sluicegate.store.anchors import is_url
from sluicegate.store.audit_files import log_label
from sluicegate.store.audit_report import Fault
from sluicegate.store.chain import Checkpoint, Verifier, format_time, read_unverified, split_notes


class Copies:
    """The checkpoints that are elsewhere, of the log in a folder and of others.

    A log that was removed leaves its checkpoints behind, signed by a key that is gone as well. They are recognised by
    the label of the place, which a log that begins there again has, too.
    """

    def __init__(self, folder: str, verifier: Verifier | None) -> None:
        self.by_writer: dict[int, list[Checkpoint]] = defaultdict(list)
        """The checkpoints of this log; those of one writer in their order."""
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self._label = log_label(folder)
        self._verifier = verifier
        self._missing: set[str] = set()
        """The chains of other logs that were reported."""

    def compare(self, anchors: Sequence[str]) -> None:
        """Read the files of the anchors: each should have checkpoints of this log."""
        for file in anchors:
            if is_url(file):
                continue
            try:
                own, others = self._read(file)
            except OSError as problem:
                reason = f"cannot be read, so the log cannot be compared with it: {problem.strerror}"
                self.faults.append(Fault(writer=0, file=file, row=0, problem=reason))
                continue
            if not own and not others:
                reason = "has no checkpoint: it was emptied, or no gateway has used it as an anchor yet"
                self.faults.append(Fault(writer=0, file=file, row=0, problem=reason))
            for other in others:
                self._report_other(file, other, is_only=not own)

    def compare_last(self, file: str) -> None:
        """Read the file that has the last checkpoint of each chain, if there is one."""
        try:
            _, others = self._read(file)
        except OSError:
            return
        for other in others:
            self._report_other(file, other, is_only=False, is_noted=False)

    def _read(self, file: str) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """The checkpoints of this log, and the last one of each chain of other logs."""
        with open(file, encoding="utf-8", errors="replace") as text:
            notes = split_notes(text.read())
        own: list[Checkpoint] = []
        others: dict[str, Checkpoint] = {}
        for note in notes:
            checkpoint = read_unverified(note)
            if checkpoint is None:
                continue
            name, _, chain = checkpoint.origin.rpartition("/")
            if self._verifier is None or name != self._verifier.name:
                known = others.get(checkpoint.origin)
                if known is None or known.head.seq <= checkpoint.head.seq:
                    others[checkpoint.origin] = checkpoint
            elif self._verifier.read(note) is not None and (number := chain.removeprefix("writer")).isdecimal():
                self.by_writer[int(number)].append(checkpoint)
                own.append(checkpoint)
        return own, list(others.values())

    def _report_other(self, file: str, other: Checkpoint, *, is_only: bool, is_noted: bool = True) -> None:
        name, _, chain = other.origin.rpartition("/")
        if other.origin in self._missing:
            return
        if other.log == self._label or is_only:
            self._missing.add(other.origin)
            if other.log == self._label:
                why = "an earlier log of this folder, which has been removed"
            else:
                why = "another log, and the file has no checkpoint of the log in this folder"
            problem = f"missing: {name} signed them on {format_time(other.at)[:19]}Z; it is {why}"
            number = chain.removeprefix("writer")
            self.faults.append(
                Fault(
                    writer=int(number) if number.isdecimal() else 0,
                    file=f"{os.path.basename(file)} ({chain})",
                    row=1,
                    until=max(1, other.head.seq),
                    problem=problem,
                )
            )
        elif is_noted:
            self.notes.append(
                f"{file} also has checkpoints of {other.origin}, up to row {other.head.seq}. It is the log of another "
                "folder, or one of an earlier version that was in this folder: that cannot be told apart."
            )
