"""Tables and sliders of the book in a browser, by keyboard alone."""

from itertools import pairwise

import pytest
import torch
from browsing import Visitor

import mergelib as ml
from mergebook.cart.read import plane

PATH = "notebooks/80-leaderboard"
SHOWN = """[...document.querySelectorAll("#leaderboard-table tbody tr:not([hidden])")]
    .map(row => [...row.cells].map(cell => cell.innerText))"""


def test_it_is_filtered_and_sorted_by_keyboard(visit: Visitor) -> None:
    visit.open(PATH)
    page = visit.page
    rows = page.evaluate(SHOWN)
    assert rows[0][0] == "one expert per task"
    page.locator("#leaderboard-table select[name=needs]").focus()
    page.keyboard.press("ArrowDown")
    fewer = page.evaluate(SHOWN)
    assert 0 < len(fewer) < len(rows)
    assert {(row[2], row[3]) for row in fewer} == {("none", "no")}
    page.locator("#leaderboard-table thead button", has_text="accuracy").focus()
    page.keyboard.press("Enter")
    turned = page.evaluate(SHOWN)
    assert [row[4] for row in turned] == [row[4] for row in fewer[::-1]], "the accuracies"
    assert sorted(turned) == sorted(fewer)
    page.locator("#leaderboard-table select[name=suite]").select_option("text4")
    others = page.evaluate(SHOWN)
    assert others != turned
    assert page.locator("#leaderboard-table .count").inner_text().startswith(f"{len(others)} rows")


CLAIMS = """[...document.querySelectorAll(".sortable tbody tr")].map(row => row.innerText)"""


def test_the_ledger_is_sorted_by_keyboard(visit: Visitor) -> None:
    visit.open("notebooks/90-claims-ledger")
    page = visit.page
    rows = page.evaluate(CLAIMS)
    assert len(rows) == 63
    page.locator(".sortable thead button", has_text="verdict").focus()
    page.keyboard.press("Enter")
    by_verdict = page.evaluate(CLAIMS)
    assert sorted(rows) == sorted(by_verdict) != rows
    marks = [row.split("\t")[1][0] for row in by_verdict]
    assert sum(one != other for one, other in pairwise(marks)) == len({*marks}) - 1
    assert page.locator(".sortable th[aria-sort=ascending]").inner_text().startswith("verdict")
    page.locator(".sortable thead button", has_text="claim").focus()
    page.keyboard.press("Enter")
    keys = [row.split()[0] for row in page.evaluate(CLAIMS)]
    assert keys[:3] == ["C1", "C2", "C3"]
    assert keys.index("S9") < keys.index("S10")


IDS = {
    "leaderboard-table": PATH,
    "task-arithmetic-slider": "notebooks/02-averaging-and-task-vectors",
    "ties-by-hand": "notebooks/03-interference",
    "rank-and-scale-sliders": "notebooks/04-low-rank-merging",
    "stability-explorer": "notebooks/43-choosing-by-the-bound",
}


@pytest.mark.parametrize("name", IDS)
def test_a_script_finds_its_own_element(visit: Visitor, name: str) -> None:
    """No section of the page has the same id."""
    visit.open(IDS[name])
    assert visit.page.locator(f"[id='{name}']").count() == 1


def test_without_scripts_it_shows_every_row(visit: Visitor) -> None:
    page = visit.page.context.browser.new_context(java_script_enabled=False).new_page()  # type: ignore[union-attr]
    page.goto(f"{visit.address}/{PATH}.html")
    assert page.locator("#leaderboard-table tbody tr:visible").count() > 150
    assert not page.locator("#leaderboard-table select").first.is_visible()


TIES = """[...document.querySelectorAll("#ties-by-hand tr.result td")]
    .map(cell => Number(cell.textContent.replace("−", "-")))"""


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ties_by_hand_is_the_librarys(visit: Visitor, count: int) -> None:
    visit.open("notebooks/03-interference")
    page = visit.page
    page.locator("#ties-by-hand input[type=number]").nth(1).fill("7")
    page.locator("#ties-by-hand input[type=range]").focus()
    page.keyboard.press("Home")
    for _ in range(count - 1):
        page.keyboard.press("ArrowRight")
    toy = torch.tensor([[4.0, 7, -3, 1], [2, -5, 1, 1], [-5, 1, 4, 1]])
    base = {"w": torch.zeros(4)}
    merged = ml.merge("ties", [{"w": row} for row in toy], pretrained=base, density=count / 4)
    assert page.evaluate(TIES) == pytest.approx(merged["w"].tolist(), abs=0.006)


def test_the_sliders_of_rank_and_scale_show_the_measured_plane(visit: Visitor) -> None:
    visit.open("notebooks/04-low-rank-merging")
    page, state = visit.page, visit.page.locator("#rank-and-scale-sliders .state")

    def value(suite: str, rank: float, scale: float) -> str:
        return f"CART: {plane(suite).round(1)[scale][rank]} %"

    assert value("imagenet8", 0.08, 1.0) in state.inner_text()
    page.locator("#rank-and-scale-sliders input[name=scales]").focus()
    page.keyboard.press("End")
    assert value("imagenet8", 0.08, 6.0) in state.inner_text()
    page.locator("#rank-and-scale-sliders input[name=ranks]").focus()
    page.keyboard.press("Home")
    assert value("imagenet8", 0.01, 6.0) in state.inner_text()
    page.locator("#rank-and-scale-sliders select").select_option("MiniLM, sentences")
    assert value("sentences8", 0.01, 6.0) in state.inner_text()


POINTS = """(() => {
    const place = circle => ["cx", "cy"].map(name => Number(circle.getAttribute(name)));
    const root = document.querySelector("#task-arithmetic-slider svg");
    const tips = [...root.querySelectorAll("g circle")].map(place);
    return [tips, place(root.querySelector(".merged"))];
})()"""
BARS = """[...document.querySelectorAll("#task-arithmetic-slider .track")].map(track =>
    ["b", "i.before", "i:last-child"].map(name => {
        const style = track.querySelector(name).style;
        return parseFloat(style.width || style.left);
    }))"""


def test_task_arithmetic_moves_from_the_pretrained_model_past_the_average(visit: Visitor) -> None:
    visit.open("notebooks/02-averaging-and-task-vectors")
    page, root = visit.page, visit.page.locator("#task-arithmetic-slider")
    tips, merged = page.evaluate(POINTS)
    assert "the average" in root.locator("output").inner_text()
    assert merged == pytest.approx([sum(place) / 3 for place in zip(*tips, strict=True)], abs=0.1)
    slider = root.locator("input[name=scale]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert root.locator("output").inner_text() == "0.67 (2/T)"
    accuracy = sum(bar[0] for bar in page.evaluate(BARS)) / 3
    assert f"and {accuracy:.0f} % at\nλ = 2/3" in (page.locator("article").text_content() or "")
    page.keyboard.press("Home")
    assert all(bar[0] == bar[1] for bar in page.evaluate(BARS))


def test_one_task_vector_at_full_length_is_its_expert(visit: Visitor) -> None:
    visit.open("notebooks/02-averaging-and-task-vectors")
    page, root = visit.page, visit.page.locator("#task-arithmetic-slider")
    for number in (1, 2):
        root.locator("input[type=checkbox]").nth(number).focus()
        page.keyboard.press("Space")
    root.locator("input[name=scale]").focus()
    page.keyboard.press("Home")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert root.locator("output").inner_text() == "1.00 (the expert)"
    tips, merged = page.evaluate(POINTS)
    assert merged == pytest.approx(tips[0], abs=0.1)
    first, *others = page.evaluate(BARS)
    assert first[0] == pytest.approx(first[2], abs=1)
    assert all(bar[0] < bar[2] for bar in others)
