"""The page at /, its files, and its login."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import httpx
import pytest
from fastapi import Request

from quire.http import page
from quire.http.guards.keys import COOKIE, LASTS, PAGE_HEADER, Logins
from quire.http.live.bundling import bundle
from quire.http.live.page import INDEX, Files
from support.live_server import LiveServer, live_server

KEY, PAGE = "a-key-of-the-operator's", {PAGE_HEADER: "1"}
FOLDER = Path(__file__).parents[2] / "src" / "quire" / "http" / "page"


_FROM_A_BROWSER = Request({"type": "http", "headers": []})


def _script() -> str:
    page = bytes(Files().answer(_FROM_A_BROWSER, INDEX).body).decode()
    return page.partition('src="')[2].partition('"')[0]


def test_browsers_get_the_page_and_ollama_what_it_asks_for(shared: LiveServer) -> None:
    page = shared.http.get("/", headers={"accept": "text/html,*/*"})
    assert page.text.startswith("<!doctype html>")
    assert shared.http.get("/").text == "Quire is running"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    again = {"accept": "text/html", "if-none-match": page.headers["etag"]}
    assert shared.http.get("/", headers=again).status_code == 304


def test_three_files_are_named_and_kept_for_good(shared: LiveServer) -> None:
    page = shared.http.get("/", headers={"accept": "text/html"})
    assert page.headers["cache-control"] == "no-cache"
    named = sorted(set(re.findall(r'(?:href|src)="(page/[^"]+)"', page.text)))
    assert [name.rpartition("/")[2] for name in named] == ["icon.svg", "main.js", "style.css"]
    for name in named:
        packed = shared.http.get(f"/{name}")
        plain = shared.http.get(f"/{name}", headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip" and packed.content == plain.content
        assert "content-encoding" not in plain.headers
        assert "immutable" in plain.headers["cache-control"]
        assert "accept-encoding" in plain.headers["vary"]
    sheet = shared.http.get(f"/{named[2]}").text
    assert all(path.read_text() in sheet for path in FOLDER.rglob("*.css"))
    assert shared.http.get("/page/main.js").status_code == 404, "it would be another one some day"


def test_what_the_page_is_made_of_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "page")
    monkeypatch.setattr(page, "__path__", [str(folder)])
    before = Files().answer(_FROM_A_BROWSER, INDEX).body
    chart = folder / "parts" / "chart.js"
    chart.write_text(chart.read_text() + "// more\n")
    assert Files().answer(_FROM_A_BROWSER, INDEX).body != before


def test_modules_become_one_script_each_after_what_it_imports() -> None:
    modules = {
        "main.js": 'import { two } from "./a/two.js";\nimport { one } from "./one.js";\nf(one);\n',
        "a/two.js": 'import { one } from "../one.js";\nexport const two = one + 1, x = 2;\n',
        "one.js": "const two = 1;\nexport const one = two;\nexport function f() {}\n",
        "idle.js": "nothing",
    }
    lines = bundle(modules, "main.js").splitlines()
    heads = [line for line in lines if line.startswith("// ")]
    assert heads == ["// one.js", "// a/two.js", "// main.js"]
    assert "return { one, f };" in lines and "const { one } = module2;" in lines


@pytest.mark.parametrize(
    "source",
    [
        'import one from "./one.js";',
        'import * as one from "./one.js";',
        'import { one as two } from "./one.js";',
        'import { one } from "./none.js";',
        'import { one } from "./main.js";',
        'await import("./one.js");',
        "export default 1;",
        "export { one };",
        "export let one = 1;",
    ],
)
def test_another_form_of_module_is_refused_by_name(source: str) -> None:
    with pytest.raises(ValueError, match=r"main\.js|none\.js"):
        bundle({"main.js": source, "one.js": "export const one = 1;"}, "main.js")


def test_it_can_be_left_out() -> None:
    with live_server(dashboard=False) as server:
        answer = server.http.get("/", headers={"accept": "text/html"})
        assert answer.text == "Quire is running"
        assert server.http.get(f"/{_script()}").status_code == 404


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


def test_a_login_ends_with_its_time() -> None:
    now = time.time()
    token = Logins.token(KEY.encode(), now)
    assert Logins([KEY]).key(token, now + LASTS - 2) == KEY.encode()
    assert Logins([KEY]).key(token, now + LASTS + 1) == b""


def test_a_login_ends_with_its_key_and_not_with_the_process() -> None:
    now = time.time()
    token = Logins.token(KEY.encode(), now)
    assert Logins(["another", KEY]).key(token, now) == KEY.encode()
    assert Logins(["another"]).key(token, now) == b""
    later, _, mac = token.partition(".")
    assert Logins([KEY]).key(f"{int(later) + 1}.{mac}", now) == b""
