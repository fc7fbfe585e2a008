"""The leaderboard in a browser, by keyboard alone."""

from browsing import Visitor

PATH = "notebooks/80-leaderboard"
SHOWN = """[...document.querySelectorAll("#leaderboard tbody tr:not([hidden])")]
    .map(row => [...row.cells].map(cell => cell.innerText))"""


def test_it_is_filtered_and_sorted_by_keyboard(visit: Visitor) -> None:
    visit.open(PATH)
    page = visit.page
    rows = page.evaluate(SHOWN)
    assert rows[0][0] == "one expert per task"
    page.locator("#leaderboard select[name=needs]").focus()
    page.keyboard.press("ArrowDown")
    fewer = page.evaluate(SHOWN)
    assert 0 < len(fewer) < len(rows)
    assert {(row[2], row[3]) for row in fewer} == {("none", "no")}
    page.locator("#leaderboard thead button", has_text="accuracy").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(SHOWN) == fewer[::-1]
    page.locator("#leaderboard select[name=suite]").select_option("text4")
    assert page.evaluate(SHOWN) != fewer[::-1]
    assert page.locator("#leaderboard .count").inner_text().startswith(f"{len(fewer)} rows")


def test_without_scripts_it_shows_every_row(visit: Visitor) -> None:
    page = visit.page.context.browser.new_context(java_script_enabled=False).new_page()  # type: ignore[union-attr]
    page.goto(f"{visit.address}/{PATH}.html")
    assert page.locator("#leaderboard tbody tr:visible").count() > 150
    assert not page.locator("#leaderboard select").first.is_visible()
