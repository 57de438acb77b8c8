"""The page's chat, in a real browser, with a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.live_server import LiveServer, eventually, live_server

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

HOSTILE = "<img src=x onerror=alert(1)> **bold** and `<b>`"
CHAT = "**/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(dashboard=True) as server:
        yield server


class Chat:
    """The view, and what it asks the server."""

    def __init__(self, page: sync_api.Page, server: LiveServer) -> None:
        self.page, self.asked = page, list[dict[str, Any]]()
        page.on("request", self._note)
        page.goto(f"{server.url}/#chat")
        expect(page.locator("#chat-model")).to_have_value("demo")

    def _note(self, request: sync_api.Request) -> None:
        if request.url.endswith("/chat/completions"):
            self.asked.append(json.loads(request.post_data))

    def say(self, text: str) -> None:
        box = self.page.get_by_label("Your message").last
        box.fill(text)
        box.press("Enter")

    def finished(self, count: int) -> None:
        """So many answers are there, and none is to come."""
        expect(self.page.locator(".answer[aria-busy=false]")).to_have_count(count)

    @property
    def history(self) -> list[tuple[str, str]]:
        return [(said["role"], said["content"]) for said in self.asked[-1]["messages"]]


def test_it_streams_and_tells_the_memory_of_each_answer(
    page: sync_api.Page, server: LiveServer
) -> None:
    chat = Chat(page, server)
    tokens = server.script(HOSTILE)
    page.get_by_label("max_tokens").fill("100")
    chat.say(HOSTILE)
    chat.finished(1)
    answer = page.locator(".answer")
    expect(answer.locator(".markdown")).to_have_text("<img src=x onerror=alert(1)> bold and <b>")
    expect(answer.locator(".markdown > p > *")).to_have_count(2)  # strong, code
    expect(page.locator(".bubble")).to_have_text(HOSTILE)
    expect(page.locator(".log img")).to_have_count(0)
    expect(answer.locator(".story")).to_contain_text(f"{len(tokens) + 1} written")
    assert chat.asked[0]["max_tokens"] == 100 and "temperature" not in chat.asked[0]
    expect(page.locator("[role=status].unseen")).to_contain_text("Answer complete: <img")
    chat.say("and on")
    chat.finished(2)
    expect(answer.last.locator(".story summary")).to_contain_text(" cached")


def test_a_turn_is_edited_and_an_answer_made_anew(page: sync_api.Page, server: LiveServer) -> None:
    chat = Chat(page, server)
    server.script("one")
    page.get_by_label("system prompt").fill("be short")
    for text in ("first", "second"):
        chat.say(text)
        chat.finished(1 if text == "first" else 2)
    page.get_by_role("button", name="Regenerate").last.click()
    chat.finished(2)
    assert chat.history[1:] == [("user", "first"), ("assistant", "one"), ("user", "second")]
    page.get_by_role("button", name="Edit").first.click()
    edited = page.locator(".edit textarea")
    edited.fill("other\nlines")
    edited.press("Enter")
    chat.finished(1)
    assert chat.history == [("system", "be short"), ("user", "other\nlines")]
    page.get_by_role("button", name="Clear").click()
    chat.finished(0)


def test_a_conversation_outlives_a_reload(page: sync_api.Page, server: LiveServer) -> None:
    chat = Chat(page, server)
    server.script("one")
    page.get_by_label("system prompt").fill("be short")
    chat.say("first")
    chat.finished(1)
    page.get_by_label("Your message").last.fill("sec")
    server.executor.hold()
    page.reload()
    server.executor.release()
    chat.finished(1)
    expect(page.locator(".bubble")).to_have_text("first")
    expect(page.locator(".answer .markdown")).to_have_text("one")
    expect(page.locator(".answer .story")).to_contain_text("2 written")
    expect(page.get_by_label("Your message").last).to_have_value("sec")
    expect(page.locator("#chat-model")).to_have_value("demo")
    chat.say("second")
    chat.finished(2)
    assert chat.history[:3] == [("system", "be short"), ("user", "first"), ("assistant", "one")]
    server.script("word " * 200)
    server.executor.hold()
    chat.say("go on for ever")
    answer = page.locator(".answer").nth(2)
    server.step_until(lambda: "word" in answer.inner_text())
    page.reload()  # in the middle of an answer, which ends with it
    server.executor.release()
    expect(answer.locator(".note")).to_have_text("stopped")
    expect(answer.locator(".markdown")).to_contain_text("word")
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException() } }")
    server.script("one")
    chat.say("more than a browser keeps")
    expect(page.locator(".standing")).to_contain_text("too long to outlive a reload")
    page.get_by_role("button", name="Clear").click()
    page.reload()
    expect(page.locator(".chat .empty")).to_contain_text("connect a chat client")
    assert page.evaluate("({...sessionStorage, ...localStorage})") == {}
    eventually(server.is_idle)


def test_its_blocks_can_be_looked_at_and_stopping_ends_it_on_the_server(
    page: sync_api.Page, server: LiveServer
) -> None:
    chat = Chat(page, server)
    server.script("word " * 200)
    ended = server.num_aborted
    server.executor.hold()
    try:
        chat.say("go on for ever")
        link = page.get_by_role("button", name="Show its blocks")
        # So slowly that no text is long enough to end before.
        eventually(lambda: link.is_visible() or server.executor.let(1), pause=0.1)
        expect(page.locator(".standing")).to_contain_text("held")
        link.click()
        expect(page).to_have_url(f"{server.url}/#memory")
        page.go_back()
        server.executor.let(1)
        page.get_by_role("button", name="Stop").click()
        chat.finished(1)
    finally:
        server.executor.release()
    eventually(lambda: server.num_aborted == ended + 1)
    eventually(server.is_idle)
    expect(page.locator(".answer .note")).to_have_text("stopped")


def test_what_is_refused_is_told_at_its_field(page: sync_api.Page, server: LiveServer) -> None:
    chat = Chat(page, server)
    field = page.get_by_label("top_p")
    field.fill("7")
    chat.say("hello")
    told = "top_p must be from 0 to 1, got 7.0"
    expect(page.locator(".answer .error")).to_have_text(told)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(told)
    expect(field).to_be_focused()
    page.get_by_label("response_format").evaluate(
        "e => { e.value = 'json_schema'; e.dispatchEvent(new Event('input', {bubbles: true})) }"
    )
    page.locator("#chat-schema").evaluate("e => { e.value = '{' }")
    chat.say("hello")
    schema = page.get_by_label("JSON schema")
    expect(schema).to_have_accessible_description(re.compile("^this is not JSON: "))
    assert len(chat.asked) == 1


def streamed(*deltas: dict[str, Any]) -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(lines) + "data: [DONE]\n\n"


def test_calls_are_shown_and_answered(page: sync_api.Page, server: LiveServer) -> None:
    chat = Chat(page, server)
    function = {"name": "weather", "arguments": '{"city": '}
    body = streamed(
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
    )
    page.route(CHAT, lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    chat.say("what is the weather?")
    expect(page.locator(".reasoning")).to_contain_text("hm")
    expect(page.locator(".call code")).to_have_text("weather")
    expect(page.locator(".call pre")).to_have_text('{\n  "city": "Oslo"\n}')
    page.unroute(CHAT)
    server.script("cold")
    page.get_by_label("Its result").fill("-3")
    page.get_by_role("button", name="Send the result").click()
    chat.finished(2)
    called, result = chat.asked[-1]["messages"][-2:]
    assert result == {"role": "tool", "tool_call_id": "a", "content": "-3"}
    assert called["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert called["reasoning"] == "hm"


MARKDOWN = [
    (
        "a *b* **c** `d*` e_f_g 2 * 3",
        "<p>a <em>b</em> <strong>c</strong> <code>d*</code> e_f_g 2 * 3</p>",
    ),
    (
        "[x](javascript:f(1)) <b>",
        '<p><span>x<span class="quiet"> (javascript:f(1))</span></span> &lt;b&gt;</p>',
    ),
    ("**open `and", "<p>**open `and</p>"),
    ("## h\n- a\n  - b\n- c", "<h4>h</h4><ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
    (
        "3. x\n\n> q\n> > r",
        '<ol start="3"><li>x</li></ol>'
        "<blockquote><p>q</p><blockquote><p>r</p></blockquote></blockquote>",
    ),
    (
        "a\nb\n```py\n<i>\n**",
        '<p>a<br>b</p><pre tabindex="0"><code>&lt;i&gt;\n**</code></pre>',
    ),
]


def test_markdown_is_the_same_however_it_comes(page: sync_api.Page, server: LiveServer) -> None:
    page.goto(server.url)
    drawn = page.evaluate(
        """async (texts) => {
          const { Markdown } = await import("/modules/parts/markdown.js");
          return texts.map((text) => {
            const whole = new Markdown(), grown = new Markdown();
            whole.show(text);
            for (let end = 1; end <= text.length; end += 1) grown.show(text.slice(0, end));
            return [whole.element.innerHTML, grown.element.innerHTML];
          });
        }""",
        [text for text, _ in MARKDOWN],
    )
    for (_, wanted), (whole, grown) in zip(MARKDOWN, drawn, strict=True):
        assert (whole, grown) == (wanted, wanted)
