"use strict";
// The button that chooses a theme. Without this script both follow the system.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => (button.textContent = dark() ? "Light theme" : "Dark theme");
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
})();
