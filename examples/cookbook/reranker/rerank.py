"""Ranks passages by how well their title, and then their text, fits the query."""

import re

STOP = {"a", "an", "did", "in", "is", "of", "the", "to", "until", "was", "were", "when", "where", "which", "who"}


def words(text):
    return {word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in STOP}


def share(part, whole):
    return len(part & whole) / len(part) if part else 0.0


def rerank(query, documents, *, title_weight=2.0):
    asked = words(query)
    scores = []
    for document in documents:
        title = words(document["title"] or "")
        # All words of the title are in the query, and the passage covers the rest of it.
        fit = title_weight * share(title, asked) + share(asked, title | words(document["text"]))
        scores.append(fit)
    return {"scores": scores}
