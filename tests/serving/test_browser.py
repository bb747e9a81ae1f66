"""The playground in a real browser: goals, starts and walls are clicked and drawn, and what is seen changes."""

import shutil

import pytest

from tests.serving.conftest import Running, maze_model, served

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium found")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=list(FLAGS))
        yield opened
        opened.close()


class Page:
    """The playground, and a hand to use it with."""

    def __init__(self, browser, url: str, **settings):
        self.page = browser.new_page(viewport={"width": 1280, "height": 800}, **settings)
        self.troubles: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def pixel(self, point):
        """Where a point of the map is on the screen."""
        return self.page.evaluate(
            "point => { const box = board.canvas.getBoundingClientRect(), [x, y] = board.toPixel(point);"
            " return [box.left + x / board.ratio, box.top + y / board.ratio] }",
            list(point),
        )

    def value(self, expression: str):
        return self.page.evaluate(f"playground.{expression}")

    def wait(self, condition: str):
        """Until it holds. The driver's own waiting evaluates text inside of the page, which its policy forbids."""
        for _ in range(400):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"this never came true: {condition}")

    def settled(self):
        """The answer to everything that was done so far."""
        self.page.wait_for_timeout(60)
        self.wait("playground.sent > 0 && playground.sent === playground.answered")
        return self.value("answer")

    def click(self, point, **settings):
        self.page.mouse.move(*self.pixel(point))
        if settings.pop("shift", False):
            self.page.keyboard.down("Shift")
            self.page.mouse.click(*self.pixel(point))
            self.page.keyboard.up("Shift")
        else:
            self.page.mouse.click(*self.pixel(point))
        return self.settled()

    def draw(self, *xy):
        self.page.mouse.move(*self.pixel(xy[0]))
        self.page.mouse.down()
        for point in xy[1:]:
            self.page.mouse.move(*self.pixel(point), steps=10)
        self.page.mouse.up()
        return self.settled()


def near(point, other, within: float = 0.1) -> bool:
    return abs(point[0] - other[0]) < within and abs(point[1] - other[1]) < within


def test_click_draw_and_watch(browser):
    with Running(maze_model(), play=True) as server:
        hand = Page(browser, server.url)
        page = hand.page
        first = hand.settled()

        # The goal follows the cursor until it is clicked.
        page.mouse.move(*hand.pixel([20, 12]))
        moved = hand.settled()
        assert near(moved["path"][-1], [20, 12]) and moved["field"] != first["field"]
        wall = hand.click([-4, 8])  # the goal is put where one can be
        assert not near(wall["path"][-1], [-4, 8], 0.5) and near(page.evaluate("board.goal"), wall["path"][-1])
        clicked = hand.click([20, 20])
        assert near(clicked["path"][-1], [20, 20])
        page.mouse.move(*hand.pixel([8, 20]))
        assert near(hand.settled()["path"][-1], [20, 20])

        # Shift and a click move the start.
        started = hand.click([0, 0], shift=True)
        assert near(started["path"][0], [0, 0])
        assert page.locator("#steps").inner_text() == str(round(started["steps"]))

        # A wall across the route changes it, erasing restores it.
        page.keyboard.press("w")
        middle = started["path"][len(started["path"]) // 2]
        walled = hand.draw([middle[0] - 1.2, middle[1] - 1.2], [middle[0] + 1.2, middle[1] + 1.2])
        assert walled["off"] and walled["path"] != started["path"]
        assert walled["problem"] or walled["steps"] > started["steps"]
        page.keyboard.press("c")
        assert hand.settled()["path"] == started["path"]

        # H lets the goal follow the cursor again, whatever the tool; arrow keys move the goal of a focused map.
        page.keyboard.press("h")
        page.mouse.move(*hand.pixel([20, 12]))
        assert near(hand.settled()["path"][-1], [20, 12])
        page.locator("#map").focus()
        page.keyboard.press("ArrowUp")
        assert hand.settled()["path"][-1][1] > 12.3 and not hand.value("follow")
        hand.click([20, 20])

        # Planners, fields and the graph.
        page.keyboard.press("1")
        assert len(hand.settled()["path"]) == 2
        page.get_by_role("button", name="asym-graph").click()
        page.keyboard.press("n")
        hand.wait("board.graph !== null")
        page.keyboard.press("f")
        hand.settled()

        # The agent walks, and leaves a trail.
        page.keyboard.press(" ")
        hand.wait("playground.agent && playground.agent.step > 15")
        waypoint_policy = hand.value("agent")
        assert not near(waypoint_policy["at"], [0, 0], 0.02) and len(page.evaluate("board.trail")) > 3
        hand.wait(f"playground.agent.step > {waypoint_policy['step']}")
        assert "step" in page.locator("#agent-state").inner_text()
        page.keyboard.press(" ")
        page.keyboard.press("r")
        hand.wait("playground.agent === null")

        assert hand.troubles == []
        assert all(url.startswith(server.url) for url in hand.requested)  # nothing from elsewhere
        page.close()


def test_own_logs_small_windows_and_the_other_models(browser):
    """Without a simulator plans and fields remain, without an agent; a model without distances has no field."""
    with Running(served(columns=4), served("goal"), play=True) as server:
        hand = Page(browser, server.url, color_scheme="light")
        page = hand.page
        page.set_viewport_size({"width": 480, "height": 640})
        plan = hand.settled()
        assert plan["field"] and len(plan["path"]) > 2
        assert page.locator("#agent-section").is_hidden() and page.locator("#no-agent").is_visible()
        left, right, bottom, top = hand.value("world.view.extent")
        goal = hand.click([left + 0.3 * (right - left), bottom + 0.6 * (top - bottom)])
        assert goal["path"][-1] != plan["path"][-1]
        page.select_option("#models", "1")
        hand.wait("playground.model === 1 && playground.ready")
        assert hand.settled()["field"] is None and page.locator("#planners button").count() == 1
        assert hand.troubles == []
        page.goto(f"{server.url}/docs")
        page.wait_for_selector("#routes article")
        assert page.locator("#routes article").count() >= 6 and "/v1/act" in page.locator("#routes").inner_text()
        page.close()


def test_the_page_reports_what_holds_now(browser):
    """A blocked route while it is blocked, the field under the cursor, a lost server."""
    with Running(served(), play=True) as server:
        hand = Page(browser, server.url)
        page = hand.page
        hand.settled()
        left, right, bottom, top = hand.value("world.view.extent")
        page.keyboard.press("w")
        for share in range(0, 63):
            y = bottom + share / 62 * (top - bottom)
            page.evaluate("line => playground.strokes.push(line)", [[left, y], [right, y]])
        hand.draw([left, bottom], [right, bottom])
        hand.wait("document.getElementById('toast').textContent.includes('erase one')")
        page.keyboard.press("c")
        hand.settled()
        hand.wait("!document.getElementById('toast').classList.contains('on')")
        page.mouse.move(*hand.pixel(hand.value("goal")))
        hand.wait("document.getElementById('tip').textContent.endsWith('steps')")
        server.server.should_exit = True
        hand.wait("document.getElementById('wait-text').textContent.includes('connection is lost')")
        assert page.locator("#wait").is_visible()
        page.close()


def test_a_page_of_another_origin_gets_nothing(browser):
    with Running(served(), play=True) as server:
        page = browser.new_page()
        page.route("http://evil.test/", lambda route: route.fulfill(body="<p>evil</p>", content_type="text/html"))
        page.goto("http://evil.test/")
        script = """async (url) => {
            const post = await fetch(url + '/v1/act', {method: 'POST', body: '{}'}).then(() => 'read', () => 'refused');
            const get = await fetch(url + '/v1/model').then(() => 'read', () => 'refused');
            const socket = await new Promise((done) => {
                const opened = new WebSocket(url.replace('http', 'ws') + '/v1/control');
                opened.onopen = () => done('open');
                opened.onerror = () => done('refused');
            });
            return [post, get, socket];
        }"""
        assert page.evaluate(script, server.url) == ["refused"] * 3
        page.close()
