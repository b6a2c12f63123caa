"""What a model is asked and shown when it is validated. Fixed: figures of two models compare only on the same words. Pure."""

from __future__ import annotations

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Explain in one sentence why the sky is blue.",
    "What is 2 + 2?",
    "Write a short greeting to a new colleague.",
    "Why do people sleep? Answer in two sentences.",
    "What do bees make?",
    "How many days are in a week?",
    "What is the opposite of hot?",
    "Give one reason why trees are useful.",
    "What is a dictionary for?",
    "Describe a rainy day in two sentences.",
    "Which is larger, the sun or the moon?",
    "Suggest a name for a small grey cat.",
    "What should I wear when it is cold outside?",
    "Say in one sentence what a doctor does.",
)
"""Each has a short answer, so that a healthy model ends by itself."""

TEXT = """\
The sun is a star at the centre of the solar system. It is a nearly perfect ball of hot plasma, and it gives the light and warmth that \
make life on Earth possible. Plants use its light to make food out of water and air, and animals, people among them, live on what the \
plants have made. Light from the sun takes about eight minutes to reach us. Every year the Earth goes once around the sun, and because \
its axis is tilted, the days are longer in summer and shorter in winter.

"Have you seen my keys?" she asked. "They were on the table this morning." He looked up from his newspaper and shook his head. "Try the \
pocket of your coat," he said. "That is where you found them last time." She laughed, went into the hall, and came back a moment later \
with the keys in her hand.

To make a simple soup, cut two onions and three carrots into small pieces and fry them in a little oil until they are soft. Add a litre \
of water, a few potatoes and some salt. Let the soup cook for about twenty minutes, then taste it. If it is too thick, add more water; if \
it is too thin, let it cook a little longer.

The first trains were pulled by steam engines. They were slow and loud, but they could carry more goods than any cart, and within a few \
decades there were railways in most countries of Europe. Towns that had a station grew quickly. Today most trains run on electricity, and \
the fastest of them travel at more than three hundred kilometres an hour.
"""
"""Plain English of four kinds, written for this purpose, so that no model has learned it by heart."""
