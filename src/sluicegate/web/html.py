"""The HTML of our pages. Every text passes `shown`, which escapes it and marks hidden characters."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Final

from sluicegate.gate.approval_text import MAX_REASON, answers_to, shown_question
from sluicegate.store.base import Approval
from sluicegate.text.visible_text import HIDDEN

_STYLE: Final = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 22%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto 4rem; padding: 0 1.25rem; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
section { border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.25rem; margin: 1.25rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1rem; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { font: .9rem/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .6rem;
  padding: .5rem .75rem; border: 1px solid var(--line); border-radius: 6px; }
h3 { font-size: .9rem; margin: .8rem 0 .2rem; font-weight: 600; overflow-wrap: anywhere; }
small { opacity: .7; font-weight: 400; }
mark { background: #c22; color: #fff; border-radius: 3px; padding: 0 .2rem; font-size: .85em; }
form { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0 0; }
button, input { font: inherit; padding: .35rem .8rem; }
input { flex: 1 1 14rem; }
.told { border-left: 4px solid var(--line); padding-left: .75rem; overflow-wrap: anywhere; }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    # Not no-referrer: with that, browsers send the Origin of a form as null.
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""Of every answer."""

UNSHOWN: Final = "unshown"
"""The field of a form that says yes to what is not shown."""

REFRESH: Final = 3
"""Seconds until a page without questions is loaded again. One with questions is not: a reason may be half written."""


def shown(text: str) -> str:
    """A text of others as HTML: escaped, and with hidden characters named."""
    return HIDDEN.sub(lambda found: f"<mark>U+{ord(found[0]):04X}</mark>", escape(text))


def document(body: str, *, refresh: bool = False) -> bytes:
    """A whole page."""
    again = f'<meta http-equiv="refresh" content="{REFRESH}">\n' if refresh else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{again}<title>sluicegate: approvals</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Approvals</h1>
{body}
</body>
</html>
""".encode()


def notice(sentence: str, command: str = "") -> bytes:
    """A page that says one thing."""
    return document(f"<p>{shown(sentence)}</p>" + (f"\n<pre>{shown(command)}</pre>" if command else ""))


def questions_list(forms: Sequence[str], told: str, further: int = 0) -> str:
    """The body of the page: what became of the last question, the open ones, and how many `further` ones wait."""
    parts = [f'<p class="told">{shown(told)}</p>'] if told else []
    parts += forms or ["<p>Nothing waits for approval. This page looks again every few seconds.</p>"]
    if further:
        parts.append(f"<p>{further:,} more wait, and are shown here when these are answered.</p>")
    if forms:
        parts.append('<p><a href="?">Load the page again</a> to see whether there are more.</p>')
    return "\n".join(parts)


def question_form(question: Approval, csrf: str, seconds: int) -> str:
    """A question with everything that a person should see, and the answers. Its forms lead to the page they are on."""
    asked = shown_question(question, shown)
    listed = "\n".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in asked.facts)
    arguments = "\n".join(
        f"<h3>{each.name}{f' <small>{escape(each.note)}</small>' if each.note else ''}</h3>\n<pre>{each.value}</pre>"
        for each in asked.arguments
    )
    warning = accept = ""
    if asked.unshown:
        warning = f'<p class="told"><strong>{escape(asked.unshown)}</strong></p>\n'
        accept = (
            f'<label><input type="checkbox" name="{UNSHOWN}" value="yes" required> Also what is not shown</label>\n'
        )
    hidden = (
        f'<input type="hidden" name="csrf" value="{escape(csrf)}">'
        f'<input type="hidden" name="id" value="{escape(question.id)}">'
    )
    buttons = "\n".join(
        f'<button name="answer" value="{escape(said)}">{escape(said.capitalize())}</button>'
        for said, scope in answers_to(question).items()
        if scope is not None
    )
    return f"""<section id="{escape(question.id)}">
<h2>May this call run? <small>question {escape(question.id)}, open for {max(0, seconds)} s</small></h2>
<dl>
{listed}
</dl>
{arguments or "<p>It has no arguments.</p>"}
{warning}<form method="post" action="?">{hidden}
{accept}{buttons}
</form>
<form method="post" action="?">{hidden}
<input name="reason" maxlength="{MAX_REASON}" placeholder="Reason, for the model" aria-label="Reason">
<button name="answer" value="no">No</button>
</form>
</section>"""
