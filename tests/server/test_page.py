"""The page at /, its files, and its login."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from quire.server.guards.logins import COOKIE, LASTS, PAGE_HEADER, Logins
from quire.server.live.page import _TYPES
from support.live_server import LiveServer, live_server

KEY, PAGE = "a-key-of-the-operator's", {PAGE_HEADER: "1"}
FOLDER = Path(__file__).parents[2] / "src" / "quire" / "page"


def test_browsers_get_the_page_and_ollama_what_it_asks_for(shared: LiveServer) -> None:
    page = shared.http.get("/", headers={"accept": "text/html,*/*"})
    assert page.text.startswith("<!doctype html>")
    assert shared.http.get("/").text == "Quire is running"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    again = {"accept": "text/html", "if-none-match": page.headers["etag"]}
    assert shared.http.get("/", headers=again).status_code == 304


def test_every_file_is_served_as_what_it_is(shared: LiveServer) -> None:
    files = [path for path in FOLDER.rglob("*") if path.suffix in _TYPES]
    assert len(files) > 10
    for path in files:
        answer = shared.http.get(f"/page/{path.relative_to(FOLDER).as_posix()}")
        assert answer.content == path.read_bytes()
        assert answer.headers["content-type"] == _TYPES[path.suffix]
    assert shared.http.get("/page/__init__.py").status_code == 404


def test_it_can_be_left_out() -> None:
    with live_server(dashboard=False) as server:
        answer = server.http.get("/", headers={"accept": "text/html"})
        assert answer.text == "Quire is running"
        assert server.http.get("/page/main.js").status_code == 404


def test_a_login_takes_the_place_of_a_key_for_the_page_alone() -> None:
    with live_server(api_key=[KEY]) as server, httpx.Client(base_url=server.http.base_url) as http:
        assert http.post("/v1/quire/login", headers=PAGE).status_code == 401
        wrong = {"authorization": "Bearer another"}
        told = http.post("/v1/quire/login", headers=wrong)
        assert "set-cookie" not in told.headers, "nor does it tell more than any path"
        assert told.json() == http.get("/v1/models", headers=wrong).json()
        bearer = {"authorization": f"Bearer {KEY}"}
        cookie = http.post("/v1/quire/login", headers=bearer).headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
        assert KEY not in cookie
        assert http.get("/v1/quire/state", headers=PAGE).status_code == 200
        # What another page could have a browser send.
        assert http.get("/v1/quire/state").status_code == 401
        http.delete("/v1/quire/login", headers=PAGE)
        assert http.get("/v1/quire/state", headers=PAGE).status_code == 401
        late = Logins.token(KEY.encode(), time.time() - LASTS - 1)
        http.cookies.set(COOKIE, late)
        assert http.get("/v1/quire/state", headers=PAGE).status_code == 401


@pytest.mark.parametrize(
    "token", ["", ".", "9" * 400, "99999999999.", "x.y", "9999999999.é", "²." + "0" * 64]
)
def test_no_other_token_is_a_login(token: str) -> None:
    assert Logins([KEY]).key(token, time.time()) == b""


def test_a_login_ends_with_its_key_and_not_with_the_process() -> None:
    now = time.time()
    token = Logins.token(KEY.encode(), now)
    assert Logins(["another", KEY]).key(token, now) == KEY.encode()
    assert Logins(["another"]).key(token, now) == b""
    later, _, mac = token.partition(".")
    assert Logins([KEY]).key(f"{int(later) + 1}.{mac}", now) == b""
