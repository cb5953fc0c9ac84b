"use strict";
// The tabs and the maps: which of them is seen, and what every method says at a point.
// Without this script all runs and all maps are shown.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const KINDS = ["mean", "entropy", "mi"]; // the order in which a method's values are packed
  const WIDEST = [1, Math.LN2, Math.LN2]; // of two classes
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

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

  async function unpack(run) {
    const bytes = Uint8Array.from(atob(run.values), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    run.values = new Uint16Array(await new Response(stream).arrayBuffer());
  }
  function make(name, text, className) {
    const element = document.createElement(name);
    element.textContent = text; // never innerHTML: names are data
    if (className) element.className = className;
    return element;
  }

  function startMaps(box, run) {
    const maps = [...box.querySelectorAll(".map")];
    const chosen = (what) => box.querySelector(`[data-what="${what}"] :checked`)?.value;
    let map, plane, at; // the map that is seen, its grid, and the [column, row] of the point
    function choose() {
      const fits = (m, ...names) => names.every((name) => m.dataset[name] === chosen(name));
      map = maps.find((m) => fits(m, "set", "domain", "quantity")) ||
        maps.find((m) => fits(m, "set", "quantity")) || maps[0];
      for (const one of maps) one.hidden = one !== map;
      plane = run.planes.find((p) => p.set === map.dataset.set && p.domain === map.dataset.domain);
      at = at && at.every((i) => i < plane.side) ? at : [0, 0].map(() => (plane.side - 1) >> 1);
      show();
    }
    const axis = (k) => plane.low[k] + (at[k] * (plane.high[k] - plane.low[k])) / (plane.side - 1);
    const short = (v) => String(+v.toFixed(3)).replace("-", "−");
    function show() {
      mark();
      box.querySelector(".spot").textContent = `x = (${short(axis(0))}, ${short(axis(1))})`;
      const size = plane.side ** 2, index = at[1] * plane.side + at[0];
      box.querySelector("tbody").replaceChildren(...plane.methods.map((method, i) => {
        const line = make("tr", "", method === run.reference ? "reference" : "");
        const name = make("th", method, "name");
        name.scope = "row";
        line.append(name);
        KINDS.forEach((_, k) => {
          const value = run.values[plane.at + (KINDS.length * i + k) * size + index] / run.unit;
          const cell = make("td", value.toFixed(3));
          cell.style.setProperty("--share", Math.min(value / WIDEST[k], 1));
          line.append(cell);
        });
        return line;
      }));
    }
    // A ring on each of the images, at the same point of the plane.
    function mark() {
      const svg = map.querySelector("svg"), frame = svg.getBoundingClientRect();
      svg.querySelectorAll(".ring").forEach((ring) => ring.remove());
      const scale = svg.viewBox.baseVal.width / (frame.width || 1);
      for (const image of svg.querySelectorAll("image.plane")) {
        const place = image.getBoundingClientRect();
        const x = place.left - frame.left + ((at[0] + 0.5) / plane.side) * place.width;
        const y = place.bottom - frame.top - ((at[1] + 0.5) / plane.side) * place.height;
        for (const look of ["ring dark", "ring"]) {
          const ring = document.createElementNS(svg.namespaceURI, "circle");
          for (const [name, value] of Object.entries({ cx: x * scale, cy: y * scale, r: 3.5, class: look }))
            ring.setAttribute(name, value);
          svg.append(ring);
        }
      }
    }
    const limit = (i) => Math.min(Math.max(i, 0), plane.side - 1);
    function point(event) {
      const image = event.target.closest("image.plane");
      if (!image) return;
      const place = image.getBoundingClientRect();
      const shares = [(event.clientX - place.left) / place.width,
        (place.bottom - event.clientY) / place.height];
      at = shares.map((share) => limit(Math.floor(share * plane.side)));
      show();
    }
    for (const one of maps) {
      one.addEventListener("pointermove", point);
      one.addEventListener("pointerdown", point);
      one.addEventListener("keydown", (event) => {
        const move = MOVES[event.key];
        if (!move) return;
        event.preventDefault();
        at = at.map((i, k) => limit(i + (event.shiftKey ? 5 : 1) * move[k]));
        show();
      });
    }
    box.addEventListener("change", choose);
    addEventListener("resize", () => mark());
    choose();
  }

  async function start() {
    await Promise.all(Object.values(data).map(unpack));
    for (const box of document.querySelectorAll(".maps")) startMaps(box, data[box.dataset.run]);
    startTabs(); // last: what is hidden has no size
    root.dataset.ready = "yes";
  }
  start();
})();
