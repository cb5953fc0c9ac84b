"use strict";
// The maps and the plane. page_frame.js tells by a "look" event that they have to be drawn again.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const KINDS = ["mean", "entropy", "mi"]; // the order in which a method's maps are packed
  const NAMES = { mean: "p(class 1)", entropy: "entropy, nats", mi: "mutual information, nats" };
  // Viridis, nine of its colours: even in lightness, and told apart by colour-blind eyes.
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962",
    "#addc30", "#fde725"].map(rgb);
  const READ = { willReadFrequently: true }; // the plane is put back under each new point
  const redraws = [];

  function rgb(hex) {
    const n = parseInt(hex.trim().slice(1), 16);
    return [n >> 16, (n >> 8) & 255, n & 255];
  }
  function between(colours, share) {
    const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
    const i = Math.min(Math.floor(at), colours.length - 2);
    return colours[i].map((c, k) => c + (at - i) * (colours[i + 1][k] - c));
  }
  function diverging() {
    const style = getComputedStyle(root);
    return ["--less", "--even", "--more"].map((name) => rgb(style.getPropertyValue(name)));
  }
  function make(name, text, className) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text; // never innerHTML: names are data
    if (className) element.className = className;
    return element;
  }

  async function unpack(run) {
    const bytes = Uint8Array.from(atob(run.values), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    run.values = new Uint16Array(await new Response(stream).arrayBuffer());
  }
  function values(run, domain, method, kind) {
    const size = domain.side * domain.side;
    const start = domain.at + (3 * domain.methods.indexOf(method) + KINDS.indexOf(kind)) * size;
    return run.values.subarray(start, start + size);
  }

  function paint(canvas, domain, numbers, low, high, colours) {
    const side = domain.side, small = make("canvas");
    small.width = small.height = side;
    const pixels = small.getContext("2d", READ), image = pixels.createImageData(side, side);
    for (let row = 0; row < side; row++)
      for (let column = 0; column < side; column++) {
        const share = (numbers[row * side + column] - low) / (high - low || 1);
        const at = 4 * ((side - 1 - row) * side + column); // rows come from the bottom
        image.data.set([...between(colours, share), 255], at);
      }
    pixels.putImageData(image, 0, 0);
    const sharp = window.devicePixelRatio || 1;
    canvas.width = canvas.height = Math.max(Math.round(canvas.clientWidth * sharp), side);
    canvas.getContext("2d", READ).drawImage(small, 0, 0, canvas.width, canvas.height);
  }
  // Grid points are the centres of the map's cells.
  function place(domain, canvas, x, y) {
    const [share, up] = [x, y].map((v, k) => {
      const step = (domain.high[k] - domain.low[k]) / (domain.side - 1);
      return (v - domain.low[k] + step / 2) / (step * domain.side);
    });
    return [share * canvas.width, (1 - up) * canvas.height];
  }
  function marks(canvas, set, domain, size) {
    const pen = canvas.getContext("2d", READ), dot = (size * canvas.width) / canvas.clientWidth;
    const width = domain.high[0] - domain.low[0];
    for (const other of set.domains)
      if (other.high[0] - other.low[0] < 0.99 * width) {
        const a = place(domain, canvas, other.low[0], other.high[1]);
        const b = place(domain, canvas, other.high[0], other.low[1]);
        pen.strokeStyle = "#fff";
        pen.lineWidth = dot * 0.8;
        pen.strokeRect(a[0], a[1], b[0] - a[0], b[1] - a[1]);
      }
    const reach = Math.max(...set.train.map(([x]) => Math.abs(x)), 0);
    if (width > 6 * reach) return; // too small to tell apart there
    for (const [x, y, label] of set.train) {
      pen.beginPath();
      pen.arc(...place(domain, canvas, x, y), dot, 0, 7);
      pen.lineWidth = dot * 0.7;
      pen.strokeStyle = label ? "#000a" : "#fff";
      pen.fillStyle = label ? "#fff" : "#000a";
      pen.fill();
      pen.stroke();
    }
  }

  // A switch remembers its choice by name, so that sets with other domains keep what they can.
  function fill(box, what, names, labels, changed) {
    const field = box.querySelector(`[data-what="${what}"]`);
    const before = field.querySelector(":checked")?.value;
    field.querySelectorAll("label").forEach((label) => label.remove());
    names.forEach((name, i) => {
      const label = make("label"), input = make("input");
      Object.assign(input, { type: "radio", name: field.dataset.name, value: name });
      input.checked = names.includes(before) ? name === before : i === 0;
      input.addEventListener("change", changed);
      label.append(input, make("span", labels[i]));
      field.append(label);
    });
    field.hidden = names.length < 2;
  }
  const chosen = (box, what) => box.querySelector(`[data-what="${what}"] :checked`)?.value;
  function where(box, run) {
    const set = run.sets.find((s) => s.name === chosen(box, "set")) || run.sets[0];
    return [set, set.domains.find((d) => d.name === chosen(box, "domain")) || set.domains[0]];
  }
  function switches(box, run, draw) {
    const names = run.sets.map((s) => s.name);
    const domains = () => {
      const [set] = where(box, run);
      const labels = set.domains.map((d) => d.label);
      fill(box, "domain", set.domains.map((d) => d.name), labels, draw);
    };
    fill(box, "set", names, names, () => (domains(), draw()));
    domains();
    for (const input of box.querySelectorAll('[data-what="quantity"] input'))
      input.addEventListener("change", draw);
    redraws.push(draw);
    draw();
  }
  const most = (numbers) => numbers.reduce((a, b) => Math.max(a, b), 0);
  // So that the one point that is farthest off does not make all the others pale.
  function nearlyMost(arrays) {
    const sizes = Float32Array.from(arrays.flatMap((a) => [...a].map(Math.abs))).sort();
    return Math.max(sizes[Math.floor(0.98 * (sizes.length - 1))] || 0, 1);
  }

  function startMaps(box, run) {
    const cards = box.querySelector(".cards");
    const bars = [...box.querySelectorAll(".bars figure")];
    function bar(figure, colours, texts) {
      const canvas = figure.querySelector("canvas"), pen = canvas.getContext("2d", READ);
      canvas.width = 256;
      canvas.height = 1;
      for (let i = 0; i < 256; i++) {
        pen.fillStyle = `rgb(${between(colours, i / 255).join(" ")})`;
        pen.fillRect(i, 0, 1, 1);
      }
      figure.querySelector("figcaption").replaceChildren(...texts.map((t) => make("span", t)));
    }
    switches(box, run, () => {
      if (!box.clientWidth) return; // in a tab that is not shown
      const [set, domain] = where(box, run), kind = chosen(box, "quantity");
      const all = domain.methods.map((m) => values(run, domain, m, kind));
      const truth = domain.methods.includes(run.reference) &&
        values(run, domain, run.reference, kind);
      const gaps = all.map((one) => truth && Float32Array.from(one, (v, i) => v - truth[i]));
      const top = Math.max(...all.map(most), 1);
      const far = nearlyMost(gaps.filter(Boolean));
      const two = diverging();
      cards.replaceChildren();
      domain.methods.forEach((method, i) => {
        const card = make("div", undefined, "card"), pair = make("div");
        card.append(make("h4", method), pair);
        cards.append(card);
        const own = make("canvas"), label = `${NAMES[kind]}, set ${set.name}, ${domain.label}`;
        own.setAttribute("role", "img");
        own.setAttribute("aria-label", `${method}: map of ${label}`);
        pair.append(own);
        paint(own, domain, all[i], 0, top, VIRIDIS);
        marks(own, set, domain, 1.3);
        if (!truth || method === run.reference) return;
        const gap = make("canvas");
        gap.setAttribute("role", "img");
        gap.setAttribute("aria-label", `${method} minus ${run.reference}: ${label}`);
        pair.append(gap);
        paint(gap, domain, gaps[i], -far, far, two);
      });
      const text = (v) => (v / run.unit).toFixed(2).replace("-", "−");
      bar(bars[0], VIRIDIS, ["0", NAMES[kind], text(top)]);
      bars[1].hidden = !truth;
      bar(bars[1], two, [`≤ ${text(-far)}`, `difference to ${run.reference}, nats`,
        `≥ +${text(far)}`]);
    });
  }

  function startPlane(box, run) {
    const canvas = box.querySelector("canvas"), pick = box.querySelector("select.method");
    const body = box.querySelector("tbody"), spot = box.querySelector(".spot");
    let at = null, set, domain, clean;
    const text = (v) => v.toFixed(3);
    const axis = (k, i) => domain.low[k] + (i * (domain.high[k] - domain.low[k])) / (domain.side - 1);
    const short = (v) => String(+v.toFixed(3)).replace("-", "−");
    function draw() {
      [set, domain] = where(box, run);
      const kind = chosen(box, "quantity"), before = pick.value;
      pick.replaceChildren(...domain.methods.map((m) => make("option", m)));
      pick.selectedIndex = Math.max(domain.methods.indexOf(before), 0);
      if (!box.clientWidth) return;
      const method = domain.methods[pick.selectedIndex];
      const tops = domain.methods.map((m) => most(values(run, domain, m, kind)));
      const top = kind === "mean" ? run.unit : Math.max(...tops, 1);
      paint(canvas, domain, values(run, domain, method, kind), 0, top, VIRIDIS);
      marks(canvas, set, domain, 2.2);
      clean = canvas.getContext("2d", READ).getImageData(0, 0, canvas.width, canvas.height);
      canvas.setAttribute("aria-label", `${method}, ${NAMES[kind]}, set ${set.name}, ` +
        `${domain.label}. Arrow keys move the point.`);
      box.querySelector(".axis").replaceChildren(make("span", short(domain.low[0])),
        make("span", `${NAMES[kind]}: dark 0, bright ${(top / run.unit).toFixed(2)}`),
        make("span", short(domain.high[0])));
      at = at && at.every((i) => i < domain.side) ? at : [0, 0].map(() => (domain.side - 1) >> 1);
      show();
    }
    function show() {
      const [column, row] = at, index = row * domain.side + column;
      const pen = canvas.getContext("2d", READ);
      const [x, y] = place(domain, canvas, axis(0, column), axis(1, row));
      pen.putImageData(clean, 0, 0);
      const sharp = canvas.width / canvas.clientWidth;
      for (const [colour, width] of [["#000", 4], ["#fff", 2]]) {
        pen.strokeStyle = colour;
        pen.lineWidth = width * sharp;
        pen.beginPath();
        pen.arc(x, y, 6 * sharp, 0, 7);
        pen.stroke();
      }
      spot.textContent = `x = (${short(axis(0, column))}, ${short(axis(1, row))})`;
      canvas.dataset.index = index;
      const widest = [1, Math.LN2, Math.LN2];
      body.replaceChildren(...domain.methods.map((method) => {
        const line = make("tr", undefined, method === run.reference ? "reference" : "");
        const name = make("th", method);
        name.scope = "row";
        name.className = "name";
        line.append(name);
        KINDS.forEach((kind, k) => {
          const value = values(run, domain, method, kind)[index] / run.unit;
          const cell = make("td", text(value));
          cell.style.setProperty("--share", Math.min(value / widest[k], 1));
          line.append(cell);
        });
        return line;
      }));
    }
    function point(event) {
      const frame = canvas.getBoundingClientRect();
      const shares = [(event.clientX - frame.left) / frame.width,
        1 - (event.clientY - frame.top) / frame.height];
      at = shares.map((s) => Math.min(Math.max(Math.floor(s * domain.side), 0), domain.side - 1));
      show();
    }
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      const far = event.shiftKey ? 5 : 1;
      at = at.map((i, k) => Math.min(Math.max(i + far * move[k], 0), domain.side - 1));
      show();
    });
    pick.addEventListener("change", draw);
    switches(box, run, draw);
  }

  async function start() {
    await Promise.all(Object.values(data).map(unpack));
    for (const [kind, begin] of [["maps", startMaps], ["plane", startPlane]])
      for (const box of document.querySelectorAll(`.${kind}`)) begin(box, data[box.dataset.run]);
    addEventListener("look", () => redraws.forEach((draw) => draw()));
    root.dataset.ready = "yes";
  }
  start();
})();
