"""Variables in `.env` files."""

from sluicegate.config.dotenv import dotenv


def test_an_env_file() -> None:
    text = "# c\nA=1\nexport B = two words # c\nC='a # b'\nD=\"x\\ny\"\r\nnonsense\n\nE=\n"
    assert dict(dotenv(text)) == {"A": "1", "B": "two words", "C": "a # b", "D": "x\ny", "E": ""}
