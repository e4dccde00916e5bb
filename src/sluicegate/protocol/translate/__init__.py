"""Translation between 2026-07-28, which is used inside, and the session era: results, their content, and questions."""
