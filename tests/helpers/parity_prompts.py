"""The prompts of the comparison on a real model: each ends with a newline, and is also used without it."""

from __future__ import annotations

from importlib.resources import files

LONG_CHARACTERS = 2_600


def chat(question: str) -> str:
    """A question as the instruction-tuned model is asked; the answer soon ends with its EOS."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def read_long_prompt() -> str:
    """The beginning of a book, cut where a sentence ends: over 590 tokens."""
    text = (files("logitd.client.demo") / "corpus.txt").read_text(encoding="utf-8")
    return text[: text.index(".", LONG_CHARACTERS) + 1] + "\n"


PROMPTS = {
    "capital": chat("What is the capital of France?"),
    "colours": chat("Name three primary colours."),
    "sea": chat("Write one sentence about the sea."),
    "spider": "Question: How many legs does a spider have?\nAnswer:\n",
    "baker": "Every morning the baker\n",
    "letter": "Dear neighbour, thank you for watering the plants while we were away.\n",
    "recipe": "To make pancakes for four people you need flour, eggs,\n",
    "book": read_long_prompt(),
}
