"""The explorer of chapter 43 in a browser: its numbers are Python's, and anyone can use it."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from playwright.sync_api import Browser, Page

from mergebook.stability.draw.explorer import CHOICES, SLIDERS, aligned_tasks, explorer, terms
from mergebook.stability.read.quadratics import USUAL, Parameter, first, planned

SHELL = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Explorer</title>
<meta name="viewport" content="width=device-width"><style>:root {{ color-scheme: light dark }}
body {{ background: canvas; color: canvastext; font-family: sans-serif }}</style>
<body><main><h1>Explorer</h1>{}</main></body></html>"""
SETTINGS: list[dict[Parameter, float]] = [
    {},
    {"steps": 1, "rate": 0.5, "batch": 1, "examples": 20, "tasks": 1},
    {"steps": 700, "rate": 0.02, "batch": 16, "examples": 500, "tasks": 12},
]


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=lambda look: look[0])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = context.new_page()
    opened.on("pageerror", lambda error: pytest.fail(str(error)))
    opened.set_content(SHELL.format(explorer()))
    yield opened
    context.close()


def shown(page: Page) -> dict[str, dict[str, float]]:
    rows = page.evaluate(
        "[...document.querySelectorAll('tr[data-group]')].map(row => ({...row.dataset}))"
    )
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["group"], {})[row["part"]] = float(row["value"])
    return groups


@pytest.mark.parametrize("changes", SETTINGS, ids=["usual", "least", "most"])
def test_its_numbers_are_pythons(page: Page, changes: dict[Parameter, float]) -> None:
    for key, value in changes.items():
        slider = page.locator(f"#explorer-{key}")
        slider.fill(str(CHOICES[key].index(value)))
        assert slider.get_attribute("aria-valuetext") == f"{value:g}"
    setting = {**USUAL, **changes}
    expected = terms(first(aligned_tasks(0), int(setting["tasks"])), planned(setting))
    for group, parts in shown(page).items():
        total = sum(expected[group].values())
        assert parts == pytest.approx({**expected[group], "total": total}, rel=1e-9), group
    words = page.locator("#stability-explorer .state").inner_text()
    found = re.search(r"ηLK = ([0-9.]+)", words)
    assert found
    assert float(found[1]) == pytest.approx(setting["rate"] * setting["steps"], rel=1e-2)


def test_it_is_moved_by_the_keyboard(page: Page) -> None:
    before = shown(page)
    page.locator("#explorer-steps").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("label[for=explorer-steps] output").inner_text() == "150"
    assert shown(page) != before
    assert page.locator("svg polyline").count() == 5


def test_it_is_accessible_and_no_wider_than_a_phone(page: Page) -> None:
    names = page.locator("#stability-explorer input").evaluate_all(
        "inputs => inputs.map(input => input.labels[0].textContent.split(':')[0])"
    )
    assert names == list(SLIDERS.values())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    violations = page.evaluate("axe.run(document).then(result => result.violations)")
    assert [item["id"] for item in violations if item["impact"] in ("serious", "critical")] == []


def test_without_scripts_it_shows_the_usual_setting(browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(SHELL.format(explorer()))
    assert page.locator("#stability-explorer .controls").is_hidden()
    assert page.locator("#stability-explorer img").is_visible()
    exact = page.locator("tr[data-group=exact][data-part=total] td").nth(1).inner_text()
    usual = terms(first(aligned_tasks(0), int(USUAL["tasks"])), planned(USUAL))
    assert exact == f"{sum(usual['exact'].values()):.3g}"
    context.close()


def test_what_it_embeds_is_the_tasks() -> None:
    found = re.search(r"const data = (\{.*\});", explorer(seed=3))
    assert found
    data = json.loads(found[1])
    assert data["centres"] == aligned_tasks(3).centres.tolist()
    assert data["usual"] == USUAL
