"""Why a server does not run: each known cause is told from what the server said, and nothing it said is repeated."""

import pytest

from sluicegate.causes import explain
from sluicegate.errors import UpstreamClosed, UpstreamUnavailable

SAID = [
    ("ImportError: cannot import name 'FastMCP' from 'mcp.server'", 'pin "mcp<2"'),
    ("ModuleNotFoundError: No module named 'mcp.server.fastmcp'", 'pin "mcp<2"'),
    ("AttributeError: module 'mcp' has no attribute 'server'", 'pin "mcp<2"'),
    ("ModuleNotFoundError: No module named 'requests'", "package that it needs is not installed"),
    ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod'", "package that it needs is not installed"),
    ("python: can't open file '/srv/x.py': [Errno 2] No such file or directory", "its arguments name does not exist"),
    ("Error: Cannot find module '/srv/index.js'", "its arguments name does not exist"),
    ("npm error code E404", "does not exist under that name"),
    ("× No solution found when resolving tool dependencies", "does not exist under that name"),
    ("npm error errno EAI_AGAIN", "could not reach the network"),
    ("KeyError: 'GITHUB_TOKEN'", "variable that it needs is not set"),
    ("Error: BRAVE_API_KEY environment variable is required", "variable that it needs is not set"),
    ("BRAVE_API_KEY is required", "variable that it needs is not set"),
    ("Error: listen EADDRINUSE: address already in use :::3000", "port that it needs is taken"),
    ("PermissionError: [Errno 13] Permission denied: '/data'", "may not use a file"),
    ("sh: 1: node: not found", "program that it starts itself"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data.db'", "file that it needs does not exist"),
    ("connect ECONNREFUSED 127.0.0.1:5432", "What it talks to is not running"),
    ("self-signed certificate in certificate chain", "does not trust a certificate"),
    ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", "ran out of memory"),
]


@pytest.mark.parametrize(("said", "sentence"), SAID)
def test_a_known_cause_is_told_with_the_way_out(said: str, sentence: str) -> None:
    explained = explain("files", UpstreamClosed("files exited with status 1.", details=f"; its last words: {said}"))
    assert explained.startswith("files does not run. ") and sentence in explained
    assert said not in explained


def test_what_is_not_known_leads_to_the_log() -> None:
    problem = UpstreamClosed("files exited with status 4.", details="; its last words: boom")
    assert explain("files", problem) == "files exited with status 4; see `sluicegate logs files`."


def test_what_it_said_long_before_is_not_taken_for_the_cause() -> None:
    problem = UpstreamClosed("files was killed.", details="; its last words: connect ECONNREFUSED (5 minutes before)")
    assert explain("files", problem) == "files was killed; see `sluicegate logs files`."


def test_a_known_cause_names_no_log_that_is_gone() -> None:
    problem = UpstreamClosed("files exited.", details="; its last words: No module named 'requests'")
    assert explain("files", problem).endswith("for the program that runs it; its log says which.")
    assert explain("files", problem, has_log=False).endswith("for the program that runs it.")


def test_one_that_said_nothing_has_no_log_to_look_into() -> None:
    assert explain("files", UpstreamClosed("files exited with status 4")) == "files exited with status 4."


def test_every_sentence_ends_as_one() -> None:
    problem = UpstreamUnavailable("files did not answer within 40 s", details="; its last words: boom")
    assert explain("files", problem) == "files did not answer within 40 s."


def test_our_own_sentence_stays_and_has_the_name() -> None:
    problem = UpstreamUnavailable("The server's command 'x' was not found; install it, or give its full path.")
    assert explain("files", problem) == f"files does not run. {problem.message}"
    named = UpstreamUnavailable("files takes no requests now (status 503).")
    assert explain("files", named) == named.message


def test_a_server_that_wants_to_know_who_we_are() -> None:
    problem = UpstreamUnavailable("search wants authorization (status 401).")
    problem.reason = "backend_auth"
    assert explain("search", problem) == "search wants authorization (status 401). Set its headers."


def test_nobody_is_sent_to_a_log_that_is_gone() -> None:
    problem = UpstreamClosed("files exited with status 4.", details="; its last words: boom")
    assert explain("files", problem, has_log=False) == "files exited with status 4."
