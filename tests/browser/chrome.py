"""Debian's Chromium, driven by Debian's chromedriver; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

WIDTH, HEIGHT = 1440, 850
"""The size of a page and of a picture, in pixels."""

PICTURES = "DRAINMARK_SCREENSHOTS"
"""The environment variable with the folder for a PNG of each page; without it, the pages are only read."""

WAIT_SECONDS = 120.0
_LISTENING_SECONDS = 5.0
_DEBUG_HINT_CHARACTERS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chrome:
    """A browser on one site."""

    driver: webdriver.Chrome
    site: str

    def open(self, path: str, *texts: str) -> None:
        """Open a page and wait until it shows these texts."""
        self.driver.get(f"{self.site}{path}")
        self.wait_for(*texts)

    def wait_for(self, *texts: str) -> None:
        """Wait until the page shows these texts."""
        self._wait(lambda: all(text in self.text() for text in texts), f"{texts} on {self.driver.current_url}")

    def wait_for_plots(self, count: int) -> None:
        """Wait until so many plots are drawn."""
        self._wait(lambda: len(self.driver.find_elements(By.TAG_NAME, "canvas")) >= count, f"{count} plots")

    def text(self) -> str:
        """Return the visible text of the page."""
        try:
            return self.driver.find_element(By.TAG_NAME, "body").text
        except StaleElementReferenceException:
            return ""

    def click(self, label: str) -> None:
        """Click the first element with this label."""
        self._element(f"//*[normalize-space(text())='{label}']").click()

    def press(self, label: str) -> None:
        """Click a button until it is gone: a visible button may not react yet."""

        def is_gone() -> bool:
            if label in self.text():
                self.click(label)
                time.sleep(_LISTENING_SECONDS)
            return label not in self.text()

        self._wait(is_gone, f"the end of {label!r} on {self.driver.current_url}")

    def fill(self, placeholder: str, text: str) -> None:
        """Write into the field with this placeholder."""
        self._element(f"//input[starts-with(@placeholder, '{placeholder}')]").send_keys(text)

    def open_tick(self) -> None:
        """Open the dialogue of the newest tick on a sensor's page: a link in the table below its timeline."""
        self._element("(//*[normalize-space(text())='0 runs requested'][self::a or self::button])[1]").click()

    def picture(self, name: str) -> None:
        """Write `<name>.png` into the folder that the environment names; do nothing if it names none."""
        folder = os.environ.get(PICTURES)
        if folder:
            time.sleep(1.0)  # drawers and plots move into place
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    def appear(self, *, width: int = WIDTH, height: int = HEIGHT, scheme: str = "light") -> None:
        """Set the size of the screen, and the colour scheme that its reader wants, light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def ask(self, script: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        return self.driver.execute_script(f"return {script}")

    def _element(self, xpath: str) -> WebElement:
        self._wait(lambda: self.driver.find_elements(By.XPATH, xpath), f"{xpath} on {self.driver.current_url}")
        return self.driver.find_elements(By.XPATH, xpath)[0]

    def _wait(self, find: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not find():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what}; the page shows: {self.text()[:_DEBUG_HINT_CHARACTERS]}")
            time.sleep(0.2)


@contextmanager
def opened_chrome(site: str) -> Iterator[Chrome]:
    """Start Chromium without a window; skip the test if it is not installed."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # Chromium refuses to start as root with a sandbox; it sees only our loopback site
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--lang=en-US",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=chromedriver))
    try:
        chrome = Chrome(driver=driver, site=site)
        chrome.appear()
        yield chrome
    finally:
        driver.quit()
