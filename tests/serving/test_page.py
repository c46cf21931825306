"""The page in a headless browser: what a person types is asked, and what is answered is shown.

Needs pip install playwright and a Chromium: playwright install chromium, or $CHROMIUM names one.
"""

import os

import pytest

pytest.importorskip("tornado", reason="needs tornado: ./setup.sh --with=serve")
pytest.importorskip("prometheus_client", reason="needs it: ./setup.sh --with=serve")

from helpers.served import served

from cli import UserError
from serving.batching import Service

PLACE = {"text": "2019", "start": 4, "end": 8, "score": 3.0, "probability": 0.8}
# What kind of model, its texts, its answer, what is typed; then what stands where on the page.
KINDS = (
    ("classifier", (1, 2), {"label": "好", "probabilities": {"坏": 0.25, "好": 0.75}}, ["天<b>气"],
     {"tr.best td:first-child": ["好"], "td.number": ["75.00%", "25.00%"], "b": []}),
    ("labelling", (1,), {"entities": [dict(PLACE, type="TIME", confidence=0.5)]},
     ["𠮷桥在于2019年。"], {"mark": ["2019TIME 50.0%"], "p.text": ["𠮷桥在于2019TIME 50.0%年。"]}),
    ("reading", (2,), dict(PLACE, others=[dict(PLACE, text="", probability=0.2)]),
     ["何时？", "新桥在于2019年。"],
     {"mark": ["201980.0%"], "td:first-child": ["2019", "（没有）"]}),
    ("masked_words", (1,), {"filled": "天气", "masks": [[{"token": "气", "probability": 0.9}]]},
     ["天[MASK]"], {"p.text": ["天气"], "td:first-child": ["气"]}))


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs it: see this file")
    with playwright.sync_playwright() as running:
        try:
            launched = running.chromium.launch(executable_path=os.environ.get("CHROMIUM"),
                                               args=["--no-sandbox", "--no-zygote"])
        except playwright.Error as error:
            pytest.skip("no browser: {}".format(str(error).splitlines()[0]))
        yield launched
        launched.close()


@pytest.mark.parametrize("head, texts, answer, typed, shown", KINDS)
def test_a_person_types_and_sees_the_answer(browser, head, texts, answer, typed, shown):
    def encode(row):
        if row[0] == "不行":
            raise UserError("cannot be read")
        return row

    service = Service({"head": head}, texts, encode, lambda rows: [answer] * len(rows))
    with served(service) as server:
        page = browser.new_page(locale="zh-CN")
        faults = []
        page.set_default_timeout(10000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto("http://127.0.0.1:{}/".format(server.port))
        page.wait_for_selector("textarea", state="attached")
        assert page.locator("textarea").count() == max(texts)
        for number, text in enumerate(typed):
            page.locator("textarea").nth(number).fill(text)
        page.locator("button").click()
        page.wait_for_selector("#answer > *", state="attached")
        for place, words in shown.items():
            assert page.locator("#answer " + place).all_text_contents() == words
        page.reload()
        page.locator("textarea").first.fill("不行")
        for number in range(1, len(typed)):
            page.locator("textarea").nth(number).fill("x")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#error:not(:empty)", state="attached")
        assert page.locator("#error").text_content() == "row 1: cannot be read"
        assert page.locator("#answer > *").count() == 0 and faults == []
        page.close()
