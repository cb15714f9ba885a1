"""The report in a real browser: headless Chromium of the system, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fidec.report.page import report_runs
from helpers.reports import HOSTILE, write_rich_run

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: make test-browser")
    path = os.environ.get("FIDEC_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no browser: install the system's package chromium, or set FIDEC_BROWSER to one")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Open a page, and collect all that should not happen: errors, messages, dialogs, requests for other files."""
    contexts = []

    def open_page(path: Path, width: int = 1280, **how):
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        contexts.append(context)
        page, wrong = context.new_page(), []
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page, wrong

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        write_rich_run(directory / f"seed{seed}", seed=seed)
    return report_runs([directory], directory / "report.html")[0]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn_without_errors_requests_or_a_wide_page(visit, report, width, scheme):
    page, wrong = visit(report, width, color_scheme=scheme)
    charts = page.locator("svg.chart")
    assert charts.count() == 11  # five of each run, and the comparison
    for index in range(charts.count()):
        box = charts.nth(index).locator(".lines path.line").first.bounding_box()
        assert box is not None
        assert box["width"] > 100
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not wrong


def test_the_pointer_shows_values_and_dragging_zooms(visit, report):
    page, wrong = visit(report)
    chart = page.locator("#runs svg.chart").nth(1)
    output = chart.locator("xpath=..").locator("output")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    assert "penalty in nats" in output.inner_text()
    labels = chart.locator(".x-ticks").text_content()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, middle)
    page.mouse.up()
    assert chart.locator(".x-ticks").text_content() != labels
    assert "scale(" in chart.locator(".lines").get_attribute("transform")
    chart.dblclick()
    assert chart.locator(".x-ticks").text_content() == labels
    assert not wrong


def test_the_keyboard_moves_the_cursor_and_zooms(visit, report):
    page, wrong = visit(report)
    chart = page.locator("#runs svg.chart").nth(1)
    output = chart.locator("xpath=..").locator("output")
    chart.focus()
    page.keyboard.press("End")
    assert output.inner_text().startswith("update 20,000:")
    page.keyboard.press("ArrowLeft")
    assert output.inner_text().startswith("update 19,000:")
    page.keyboard.press("+")
    assert "scale(2 1)" in chart.locator(".lines").get_attribute("transform")
    page.keyboard.press("0")
    assert "scale(1 1)" in chart.locator(".lines").get_attribute("transform")
    assert not wrong


def test_the_numbers_of_a_chart_become_a_table(visit, report):
    page, wrong = visit(report)
    numbers = page.locator("#runs details.numbers").nth(1)
    numbers.locator("summary").click()
    numbers.locator("table").wait_for()
    assert numbers.locator("tbody tr").count() == 20
    assert not wrong


def test_episodes_are_filtered_and_sorted(visit, report):
    page, wrong = visit(report)
    table = page.locator("#run0-episodes")
    page.locator("details", has=table).locator("summary").first.click()
    page.locator("#run0-episodes-filter").fill("20000 ok")
    assert table.locator("tbody tr:visible").count() == 9  # the status of the first of ten is another
    assert "9 of 20 rows" in page.locator(".filtering", has=page.locator("#run0-episodes-filter")).inner_text()
    page.locator("#run0-episodes-filter").fill("")
    seeds = lambda: [int(text) for text in table.locator("tbody tr td:nth-child(3)").all_inner_texts()]  # noqa: E731
    button = table.get_by_role("button", name="seed")
    button.click()
    assert seeds() == sorted(seeds())
    button.press("Enter")
    assert seeds() == sorted(seeds(), reverse=True)
    assert table.locator("th").nth(2).get_attribute("aria-sort") == "descending"
    assert not wrong


def test_hostile_names_run_nothing(visit, tmp_path):
    hostile = write_rich_run(tmp_path / f"a{HOSTILE.replace('/', '')}", text=HOSTILE)
    path, _ = report_runs([hostile], tmp_path / "report.html", title=HOSTILE)
    page, wrong = visit(path)
    page.locator("#runs svg.chart").nth(1).hover()
    for summary in page.locator("summary").all():
        summary.click()
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE
    assert not wrong


def test_a_video_beside_the_page_is_the_only_request(visit, tmp_path):
    run = write_rich_run(tmp_path / "a run")
    (run / "play.mp4").write_bytes(b"not a video")
    path, _ = report_runs([run], tmp_path / "report.html")
    page, wrong = visit(path)
    page.wait_for_timeout(200)
    assert [each for each in wrong if not each.endswith("/a%20run/play.mp4")] == []
    assert page.locator("video").count() == 1


def test_the_page_can_be_printed(visit, report):
    page, _ = visit(report)
    page.emulate_media(media="print")
    assert page.locator(".filtering").first.is_hidden()
    assert len(page.pdf()) > 10_000
