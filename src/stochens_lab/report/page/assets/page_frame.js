"use strict";
// The theme and the tabs. Without this script both themes follow the system and all runs are shown.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const look = () => dispatchEvent(new Event("look"));

  function startTheme() {
    const button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const name = () => (button.textContent = dark() ? "Light theme" : "Dark theme");
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      name();
      look();
    });
    system.addEventListener("change", () => (name(), look()));
    name();
  }

  function startTabs() {
    const list = document.querySelector(".tabs");
    if (!list) return;
    const tabs = [...list.querySelectorAll("a")];
    const panel = (tab) => document.getElementById(tab.dataset.run);
    list.setAttribute("role", "tablist");
    function open(chosen) {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", tab === chosen);
        tab.tabIndex = tab === chosen ? 0 : -1;
        panel(tab).hidden = tab !== chosen;
      }
      look();
    }
    tabs.forEach((tab, i) => {
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", tab.dataset.run);
      panel(tab).setAttribute("role", "tabpanel");
      panel(tab).setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        open(tab);
      });
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        const next = tabs[(i + step + tabs.length) % tabs.length];
        open(next);
        next.focus();
      });
    });
    open(tabs[0]);
  }

  startTheme();
  startTabs();
  let waiting;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar coming and going
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(look, 150);
  });
})();
