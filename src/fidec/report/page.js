"use strict";
// Cursor, values and zoom of charts; tables of their numbers; sorting and filtering of tables. No network.
(() => {
  const LEFT = 64, RIGHT = 610, TOP = 14, BOTTOM = 248;  // the plot, as charts.py draws it
  const make = (name, text) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const show = (value) => value === null || value === undefined ? "-" :
    value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6) ? value.toExponential(2) :
    value.toLocaleString("en", { maximumSignificantDigits: 4 });
  const nearest = (xs, x) => {
    let best = 0;
    xs.forEach((each, index) => { if (Math.abs(each - x) < Math.abs(xs[best] - x)) best = index; });
    return best;
  };
  const roundTicks = (low, high) => {
    const size = 10 ** Math.floor(Math.log10((high - low) / 5));
    const step = [1, 2, 5, 10].map((f) => f * size).find((s) => (high - low) / s <= 5);
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(tick);
    return found;
  };

  const activate = (svg) => {
    const chart = JSON.parse(svg.dataset.chart), figure = svg.closest("figure");
    const output = figure.querySelector("output"), cursor = svg.querySelector(".cursor");
    const group = svg.querySelector(".lines"), labels = svg.querySelector(".x-ticks");
    const first = labels.innerHTML, all = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    let [low, high] = chart.range, at = -1, start = null;
    const toPixel = (x) => LEFT + (x - low) / (high - low) * (RIGHT - LEFT);
    const toValue = (event) => {
      const box = svg.getBoundingClientRect();
      return low + ((event.clientX - box.left) / box.width * 640 - LEFT) / (RIGHT - LEFT) * (high - low);
    };
    const point = (index) => {
      at = Math.max(0, Math.min(all.length - 1, index));
      const x = all[at];
      cursor.setAttribute("d", x < low || x > high ? "M0 0" : `M${toPixel(x)} ${TOP}V${BOTTOM}`);
      const values = chart.lines.filter((line) => line.x.includes(x)).map((line) => {
        const i = line.x.indexOf(x), band = line.low && line.low[i] !== null && line.low[i] !== undefined;
        return `${line.name} ${show(line.y[i])}` + (band ? ` [${show(line.low[i])}, ${show(line.high[i])}]` : "");
      });
      output.textContent = `${chart.x} ${show(x)}: ${values.join("; ")}`;
    };
    const zoom = (a, b) => {
      const [least, most] = chart.range;
      [low, high] = [Math.max(least, Math.min(a, b)), Math.min(most, Math.max(a, b))];
      if (high - low < 1e-6 * (most - least)) [low, high] = [least, most];
      const factor = (most - least) / (high - low);
      const shift = LEFT - factor * (LEFT + (low - least) / (most - least) * (RIGHT - LEFT));
      group.setAttribute("transform", `translate(${shift} 0) scale(${factor} 1)`);
      if (factor === 1) { labels.innerHTML = first; return; }
      labels.replaceChildren(...roundTicks(low, high).map((tick) => {
        const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
        text.setAttribute("x", toPixel(tick)); text.setAttribute("y", BOTTOM + 16); text.setAttribute("class", "tick");
        text.textContent = show(tick);
        return text;
      }));
    };
    const around = (x, half) => {  // a window of this width, moved into the range
      const [least, most] = chart.range, middle = Math.max(least + half, Math.min(most - half, x));
      zoom(middle - half, middle + half);
    };
    svg.addEventListener("pointermove", (event) => point(nearest(all, toValue(event))));
    svg.addEventListener("pointerdown", (event) => { start = toValue(event); });
    svg.addEventListener("pointerup", (event) => {
      const end = toValue(event);
      if (start !== null && Math.abs(end - start) > 0.03 * (high - low)) zoom(start, end);
      start = null;
    });
    svg.addEventListener("dblclick", () => zoom(...chart.range));
    svg.addEventListener("keydown", (event) => {
      const x = at < 0 ? (low + high) / 2 : all[at], quarter = (high - low) / 4;
      const keys = {
        ArrowRight: () => point(at + 1), ArrowLeft: () => point(at < 0 ? all.length - 1 : at - 1),
        Home: () => point(0), End: () => point(all.length - 1), "0": () => zoom(...chart.range),
        "+": () => around(x, quarter), "-": () => around(x, 4 * quarter),
      };
      if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) { keys[event.key](); event.preventDefault(); }
    });
    const numbers = figure.querySelector(".numbers");
    numbers.addEventListener("toggle", () => {
      if (!numbers.open || numbers.querySelector("table")) return;
      const table = make("table"), head = table.createTHead().insertRow(), body = table.createTBody();
      for (const name of [chart.x, ...chart.lines.map((line) => line.name)]) head.append(make("th", name));
      for (const x of all) {
        const row = body.insertRow();
        row.append(make("td", show(x)));
        for (const line of chart.lines) row.append(make("td", show(line.y[line.x.indexOf(x)])));
      }
      const box = make("div");
      box.className = "wide";
      box.append(table);
      numbers.append(box);
    });
  };

  const value = (cell) => {
    const text = cell.textContent.trim(), number = Number(text.replaceAll(",", "").replace("\u2212", "-"));
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  const sortable = (table) => {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = make("button", cell.textContent);
      button.type = "button";
      cell.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = (a, b) => {
          const [x, y] = [value(a.cells[column]), value(b.cells[column])];
          const both = typeof x === "number" && typeof y === "number";
          return both ? x - y : typeof x === typeof y ? x.localeCompare(y) : typeof x === "number" ? -1 : 1;
        };
        const rows = [...body.rows].sort(order);
        body.append(...(down ? rows.reverse() : rows));
      });
    });
  };
  const filterable = (input) => {
    const table = document.getElementById(input.getAttribute("aria-controls"));
    const count = input.closest(".filtering").querySelector("output"), rows = [...table.tBodies[0].rows];
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase() + " " + [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" ");
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    });
  };
  document.querySelectorAll("svg.chart").forEach(activate);
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("input.filter").forEach(filterable);
})();
