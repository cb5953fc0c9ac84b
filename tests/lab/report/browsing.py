"""How the pages are looked at in a real browser."""

from pathlib import Path

LOOKS = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")]


def visit(browser, path: Path, width: int = 1280, theme: str = "light") -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    for log in ("browser", "performance"):
        browser.get_log(log)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    waits = "document.getElementById('data') && document.documentElement.dataset.ready !== 'yes'"
    ready = f"return !({waits})"  # those with data have a script that unpacks them
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(ready))


def assert_opens(browser, path: Path, width: int, theme: str) -> None:
    """Without an error, never scrolling sideways, in the theme that is asked for."""
    visit(browser, path, width, theme)
    wide = "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    whole, body, window = browser.execute_script(wide)
    assert max(whole, body) <= window == width
    assert [line for line in browser.get_log("browser") if line["level"] != "INFO"] == []
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    bright = sum(int(c) for c in ground.strip("rgb()").split(",")) > 3 * 128
    assert bright == (theme == "light")
