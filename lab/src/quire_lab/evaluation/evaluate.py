"""Each form of a model is loaded, compared, asked and timed, one at a time."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from torch import Tensor

from quire.core.errors import ConfigError, ModelError
from quire.engine.capacity import KnownLoss, remember_loss
from quire.engine.llm import LLM
from quire.text.params import SamplingParams
from quire_lab.evaluation.distributions import next_token_logits
from quire_lab.evaluation.divergence import Loss, Reference
from quire_lab.evaluation.forms import REFERENCE, ModelForm
from quire_lab.evaluation.tasks import NEEDLES, Task, needle, questions

_TIMED = 8, 32, 64  # texts at a time, tokens in and out of each
_REPEATS = 2
_PLAIN = 200  # token ids that every vocabulary has
_ROOM = 96  # tokens for a needle's question and answer
_NEEDLES = 4  # of each length


class Judging(NamedTuple):
    """What is measured. context: most tokens before a token; predictions: most of the text."""

    text: str
    context: int = 1024
    predictions: int = 2048
    questions: int = 20  # of each task


class FormResult(NamedTuple):
    """One form. refusal: why it cannot be had; there is nothing else then."""

    form: ModelForm
    refusal: str = ""
    loss: Loss | None = None
    tasks: Mapping[str, float | None] = {}  # by name, the share that was right; None: too long
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    tokens_per_second: float = 0.0  # of eight texts at a time


class Evaluation(NamedTuple):
    """Of one model. The first row is of the form that all are compared with."""

    model: str
    rows: Sequence[FormResult]


class Evaluator:
    """Loads forms one after the other, and keeps what the first said to compare the others with."""

    def __init__(
        self, options: Mapping[str, Any], plan: Judging, progress: Callable[[str], None]
    ) -> None:
        """options: fields of EngineConfig, three of which forms replace.

        progress is called with what begins.
        """
        self._options, self._plan, self._progress = options, plan, progress
        self._reference: Reference | None = None
        self._questions: Mapping[str, Sequence[Task]] = {}

    def run(self, forms: Sequence[ModelForm]) -> Evaluation:
        """Measure ``forms`` against the model's own weights in float32.

        Where those do not fit, the model's own type is what forms are compared with.

        Raises:
            ConfigError, ModelError: the model cannot be loaded, or writes no text.
        """
        try:
            begun = None
            with suppress(ConfigError, ModelError):
                begun = self._begin(REFERENCE)
            first, name = begun or self._begin(ModelForm())
            rows = [first, *(self._of(form) for form in forms if form != first.form)]
            return Evaluation(name, rows)
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def _begin(self, form: ModelForm) -> tuple[FormResult, str]:
        self._forget()
        with self._loaded(form) as llm:
            self._reference = Reference(_rows(llm, self._plan))
            self._progress(f"{form.name}: {self._reference.predictions:,} predictions")
            self._reference.keep(_logits(llm, self._reference.rows))
            self._questions = _questions(llm, self._plan)
            return self._measured(llm, form), llm.capacity.model_name

    def _of(self, form: ModelForm) -> FormResult:
        try:
            with self._loaded(form) as llm:
                found, key = self._measured(llm, form), llm.capacity.form_key
        except (ConfigError, ModelError) as error:
            return FormResult(form, str(error))
        if found.loss is not None and self._options["model"] is not None:
            loss = found.loss
            known = KnownLoss(loss.predictions, loss.more_perplexity, loss.same_token)
            remember_loss(key, known)
        return found

    @contextmanager
    def _loaded(self, form: ModelForm) -> Iterator[LLM]:
        self._progress(f"{form.name}: load")
        gc.collect()  # the form before, whose memory is not there otherwise
        options = {**self._options, **form._asdict()}
        with LLM(options.pop("model"), **options) as llm:
            yield llm

    def _measured(self, llm: LLM, form: ModelForm) -> FormResult:
        assert self._reference is not None
        self._progress(f"{form.name}: distributions")
        loss = self._reference.compare(_logits(llm, self._reference.rows))
        tasks = {}
        for task, asked in self._questions.items():
            self._progress(f"{form.name}: {task}")
            tasks[task] = _share_right(llm, asked)
        self._progress(f"{form.name}: tokens per second")
        held = llm.capacity
        return FormResult(
            form, "", loss, tasks, held.weight_bytes, held.kv_bytes_per_token, _rate(llm)
        )


def _rows(llm: LLM, plan: Judging) -> list[list[int]]:
    """The text's tokens, in rows of which each overlaps the one before by its first token."""
    ids = llm.engine.input_processor.tokenizer.encode(plan.text)[: plan.predictions + 1]
    longest = llm.capacity.max_model_len
    context = plan.context if longest is None else min(plan.context, longest - 1)
    rows = [ids[start : start + context + 1] for start in range(0, len(ids) - 1, context)]
    if not rows:
        raise ConfigError("the text to judge by has no two tokens")
    return rows


def _logits(llm: LLM, rows: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    for row in rows:
        yield from next_token_logits(llm, row[:-1])


def _questions(llm: LLM, plan: Judging) -> dict[str, Sequence[Task]]:
    if not plan.questions:
        return {}
    asked: dict[str, Sequence[Task]] = dict(questions(plan.questions))
    sentences = [one.strip() + "." for one in plan.text.replace("\n", " ").split(". ") if one]
    count = llm.engine.input_processor.tokenizer.count
    for length in NEEDLES:
        filler, room = list[str](), length - _ROOM
        for sentence in sentences:
            room -= count(sentence)
            if room < 0:
                break
            filler.append(sentence)
        if room < 0:  # the text is long enough
            asked[f"needle {length // 1024}k"] = [needle(filler, i) for i in range(_NEEDLES)]
    return asked


def _share_right(llm: LLM, asked: Sequence[Task]) -> float | None:
    """None: the texts are longer than the model's."""
    longest, count = llm.capacity.max_model_len, llm.engine.input_processor.tokenizer.count
    if longest is not None and max(count(one.prompt) for one in asked) + _ROOM > longest:
        return None
    prompts, params = [one.prompt for one in asked], [one.params() for one in asked]
    answers = llm.generate(prompts, params, use_tqdm=False)
    right = [
        question.is_right(answer.outputs[0].text)
        for question, answer in zip(asked, answers, strict=True)
    ]
    return sum(right) / len(right)


def _rate(llm: LLM) -> float:
    """Tokens per second of several texts at a time, the better of two runs."""
    texts, before, after = _TIMED
    draw, seconds = random.Random(0), list[float]()
    params = SamplingParams(temperature=0, max_tokens=after, ignore_eos=True, detokenize=False)
    for _ in range(_REPEATS):
        prompts = [
            {"prompt_token_ids": draw.choices(range(_PLAIN), k=before)} for _ in range(texts)
        ]
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return texts * after / min(seconds)
