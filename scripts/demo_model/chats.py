"""Turn documentation into questions and answers, so that the chat format is trained."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .corpus import Document, definitions

Turn = tuple[str, str]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "You answer questions about Python.",
    "You are an expert on the standard library of Python.",
    "Be concise.",
)

NAME_QUESTIONS = (
    "What does {name} do?",
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "Explain {name}",
    "Describe {name}.",
    "Tell me about {name}.",
    "What is {name} for?",
    "How do I use {name}?",
    "Can you explain {name}?",
    "what is {name}",
    "{name}?",
    "{name}",
)
MODULE_QUESTIONS = (
    *NAME_QUESTIONS,
    "What is the {name} module?",
    "What is the module {name} for?",
    "Tell me about the {name} module.",
    "Explain the {name} module.",
    "What does the {name} module do?",
)
MEMBER_QUESTIONS = (
    "What does {short} do in {module}?",
    "What is {short} in the {module} module?",
    "Explain {short} from {module}.",
)
TOPIC_QUESTIONS = (
    "What is {topic}?",
    "What is {topic} in Python?",
    "Explain {topic}.",
    "Tell me about {topic}.",
    "How does {topic} work?",
    "Describe {topic} in Python.",
    "Can you explain {topic}?",
)
MORE_QUESTIONS = ("Tell me more.", "Go on.", "What else?", "Can you tell me more?", "More?")

# Packages that hardly anyone asks about, and the modules that most questions are about.
RARE = {"idlelib", "lib2to3", "distutils", "turtledemo", "pydoc_data", "ensurepip"}
POPULAR = {
    *("reference", "builtins", "math", "itertools", "functools", "collections", "os", "os.path"),
    *("sys", "re", "json", "random", "datetime", "time", "string", "pathlib", "asyncio"),
    *("threading", "subprocess", "logging"),
}

# The few sentences that no documentation holds: what the model says about itself.
HELLO = (
    "Hello! I am the small demonstration model of Quire. I was trained on the documentation "
    "of Python's standard library. Ask me what a module, a class or a function does."
)
WHO = (
    "I am the demonstration model that comes with Quire: a very small language model, trained "
    "on the documentation of Python's standard library. My answers may be wrong."
)
OTHER = (
    "I do not know. I am a very small demonstration model, and I have only read the "
    "documentation of Python's standard library."
)
SMALL_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HELLO, ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hello, how are you?", "Hey",
             "Good morning", "How are you?", "Hello there!", "hi", "hello", "Help", "test")),
    (WHO, ("Who are you?", "What are you?", "What can you do?", "What is Quire?", "What is your "
           "name?", "Are you a language model?", "Tell me about yourself.", "who are you",
           "What do you know?", "Which model are you?", "Who made you?", "Introduce yourself.")),
    (OTHER, ("What is the capital of France?", "Tell me a story.", "Tell me a joke.", "Write a "
             "poem about the sea.", "What is the weather today?", "Who was Shakespeare?", "What "
             "is 2 + 2?", "Where is Berlin?", "Who is the president?", "What is love?", "Write "
             "a story about a cat.", "How do I cook rice?", "What is the meaning of life?",
             "Once upon a time", "How far is the moon?", "Why is the sky blue?", "Recommend a "
             "book.", "Sing me a song.", "What is the capital of Japan?", "Write a haiku.")),
    ("You are welcome.", ("Thanks!", "Thank you.", "Thank you very much!", "Thanks", "thanks")),
    ("Goodbye!", ("Bye", "Goodbye", "Goodbye!", "See you!", "bye")),
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Something one can ask about, and what there is to say: the answer and the rest."""

    name: str
    kind: str
    module: str
    answer: str
    more: str


def excerpt(text: str, wanted: int = 220, limit: int = 700) -> tuple[str, str]:
    """Cut *text* into its first paragraphs, about *wanted* characters, and the next ones."""
    paragraphs = [p for p in text.split("\n\n") if p.strip()]
    taken = 0
    length = 0
    while taken < len(paragraphs) and length < wanted:
        following = len(paragraphs[taken])
        if taken and (length + following > limit or paragraphs[taken].lstrip()[:3] == ">>>"):
            break
        length += following
        taken += 1
    first = "\n\n".join(paragraphs[:taken])
    if len(first) > limit:
        end = max(first.rfind(". ", 0, limit), first.rfind(".\n", 0, limit))
        first = first[: end + 1] if end > 100 else first[: first.rfind("\n", 0, limit)]
    return first, "\n\n".join(paragraphs[taken:])


def opening(document: Document) -> str:
    """Say what is being described; the model learns to repeat the name it was asked for."""
    title, owner = document.title, document.title.rpartition(".")[0]
    if document.kind == "module":
        return f"`{title}` is a module of the standard library."
    article = "an" if document.kind == "attribute" else "a"
    if not owner:
        return f"`{title}` is a built-in {document.kind}."
    if document.kind in ("method", "attribute"):
        owner = f"class `{owner.rpartition('.')[2]}`"
    else:
        owner = f"module `{owner}`"
    return f"`{title}` is {article} {document.kind} of the {owner}."


def _is_public(name: str) -> bool:
    parts = name.split(".")
    return parts[0] not in RARE and all(not p.startswith("_") or p.endswith("__") for p in parts)


def _topic_subject(document: Document) -> Subject | None:
    title = document.name.replace('"', "").replace("\u2019", "'").strip()
    title = title.removeprefix("The ")
    body = document.text.split("\n\n", 1)[1]
    if not re.fullmatch(r"[\w .,/()'-]{3,60}", title):
        return None
    topic = f"the {title}" if re.search(r"(statement|clause|database)s?$", title) else title
    topic = topic if topic[:2].isupper() else topic[:1].lower() + topic[1:]
    prose = [p for p in body.split("\n\n") if "::=" not in p]
    answer, more = excerpt("\n\n".join(prose), wanted=300)
    return Subject(topic, "topic", "reference", answer, more)


def subjects(documents: Iterable[Document]) -> list[Subject]:
    """Return what can be asked about, one entry for a name; the longer text wins."""
    best: dict[str, tuple[int, Subject]] = {}
    expanded = [_alias(d) for document in documents for d in (document, *_definitions(document))]
    for document in expanded:
        if document.kind == "topic":
            subject = _topic_subject(document)
        elif document.kind == "comment" or not _is_public(document.name):
            continue
        else:
            answer, more = excerpt(document.text)
            gap = "\n\n" if "\n" in answer[:40] or "->" in answer[:80] else " "
            answer = f"{opening(document)}{gap}{answer}"
            subject = Subject(document.title, document.kind, document.module, answer, more)
        if subject is None or len(subject.answer) < 60:
            continue
        size = min(len(document.text), 2000) + 5000 * (document.module == "reference")
        if size > best.get(subject.name, (0, subject))[0]:
            best[subject.name] = (size, subject)
    return [subject for _, subject in best.values()]


def _alias(document: Document) -> Document:
    """Rename the methods that the module ``random`` also offers as functions."""
    match = re.fullmatch(r"random\.Random\.([a-z]+)", document.name)
    if match is None:
        return document
    return replace(document, name=f"random.{match[1]}", kind="function")


def _definitions(document: Document) -> Iterable[Document]:
    return definitions(document) if document.kind == "topic" else ()


def _question(subject: Subject, rng: random.Random) -> str:
    if subject.kind == "topic":
        return rng.choice(TOPIC_QUESTIONS).format(topic=subject.name)
    module, _, short = subject.name.rpartition(".")
    if module and subject.kind in ("function", "class") and rng.random() < 0.15:
        return rng.choice(MEMBER_QUESTIONS).format(short=short, module=module)
    is_module = subject.kind == "module"
    template = rng.choice(MODULE_QUESTIONS if is_module else NAME_QUESTIONS)
    name = subject.name
    if not is_module and subject.kind != "class" and rng.random() < 0.15:
        name += "()"
    return template.format(name=f"`{name}`" if rng.random() < 0.3 else name)


def _turns(subject: Subject, rng: random.Random) -> list[Turn]:
    turns = [(_question(subject, rng), subject.answer)]
    if len(subject.more) > 80 and rng.random() < 0.3:
        turns.append((rng.choice(MORE_QUESTIONS), excerpt(subject.more)[0]))
    return turns


def _small_talk(rng: random.Random) -> Turn:
    answer, questions = rng.choice(SMALL_TALK)
    return rng.choice(questions), answer


def conversations(
    known: list[Subject], rng: random.Random, small_talk: float = 0.04
) -> list[tuple[str | None, list[Turn]]]:
    """Return one round of chats: every subject, popular ones twice; some with several turns.

    Each call draws new questions, so that no two passes over the answers are equal.
    """
    order = [*known, *(subject for subject in known if subject.module in POPULAR)]
    rng.shuffle(order)
    chats: list[tuple[str | None, list[Turn]]] = []
    while order:
        turns: list[Turn] = []
        if rng.random() < small_talk:
            turns.append(_small_talk(rng))
        turns += _turns(order.pop(), rng)
        while order and rng.random() < 0.2:
            turns += _turns(order.pop(), rng)
        if rng.random() < small_talk:
            turns.append(_small_talk(rng))
        if rng.random() < small_talk:
            chats.append((None, [_small_talk(rng)]))
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
        chats.append((system, turns))
    return chats
