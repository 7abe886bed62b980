// Comfort for a page that is whole without it: sorting, filtering, copying, unfolding. It adds no content of its own:
// every word is in the page already, and whatever it writes is written as text, never as mark-up.
"use strict";
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const byId = (id) => document.getElementById(id);
  const say = (words) => { byId("said").textContent = words; };
  const SHOWN_AT_ONCE = 20;

  // Tables: a button in every head that can be sorted by; what is not known and the rows of the rest stay last.
  const keyOf = (row, column, kind) => {
    const cell = row.cells[column];
    if (kind === "text") return cell.textContent.trim().toLowerCase();
    return Number(cell.dataset.v ?? cell.textContent.replace(/,/g, "").trim());
  };
  const sort = (table, head) => {
    const column = head.cellIndex;
    const kind = head.dataset.sort;
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : kind === "number";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row, column, kind), rest: row.matches(".rest") }));
    rows.sort((a, b) => {
      if (a.rest !== b.rest) return a.rest ? 1 : -1;
      const lost = Number.isNaN(a.key) - Number.isNaN(b.key);
      if (lost || a.key === b.key || Number.isNaN(a.key)) return lost;
      return (a.key < b.key ? -1 : 1) * (down ? -1 : 1);
    });
    const folds = rows.some(({ row }) => row.matches(".beyond"));
    rows.forEach(({ row }, at) => row.classList.toggle("beyond", folds && at >= SHOWN_AT_ONCE));
    body.append(...rows.map(({ row }) => row));
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  for (const table of all("table[data-sortable]")) {
    for (const head of all("thead th[data-sort]", table)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head));
      head.append(button);
    }
  }

  // The filter shows rows that hold every word that was typed, folded ones too, and says how many there are.
  const filter = byId("kernel-filter");
  if (filter) {
    const table = byId(filter.dataset.table);
    const told = byId("kernel-filtered");
    const rows = Array.from(table.tBodies[0].rows, (row) => [row, row.textContent.toLowerCase()]);
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      table.classList.toggle("filtered", words.length > 0);
      told.textContent = words.length ? told.dataset.said.replace("#", shown) : "";
    });
  }

  // Copying: the Markdown stands in the page once. Where the clipboard is closed it is selected instead.
  const copy = byId("copy-markdown");
  const label = copy.textContent;
  const source = byId("markdown-text");
  const tell = (words) => {
    copy.textContent = words;
    say(words);
    setTimeout(() => { copy.textContent = label; say(""); }, 4000);
  };
  const select = () => {
    byId("markdown").open = true;
    getSelection().selectAllChildren(source);
    source.scrollIntoView({ block: "center" });
  };
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      tell(copy.dataset.done);
    } catch {
      select();
      tell(document.execCommand("copy") ? copy.dataset.done : copy.dataset.failed);
    }
  });

  // One step close up: stretched for zoom, pointed at, walked through. Names come from the document in the page.
  const report = byId("traceanalyzer-report");
  const closeups = all("[data-closeup]");
  const invisible = /[\p{C}\u2028\u2029]/gu;
  const number = (one) => one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  const visible = (text) => text.replace(invisible, (one) => `\u27eaU+${number(one)}\u27eb`);
  const shown = closeups.length ? JSON.parse(report.textContent).closeups : [];
  for (const part of closeups) {
    const found = shown[Number(part.dataset.closeup)];
    const scroll = part.querySelector(".closeup-scroll");
    const picture = part.querySelector("svg.closeup-svg");
    const marks = part.querySelector(".closeup-scroll .ticks");
    const told = part.querySelector(".closeup-said");
    const rows = all("svg", picture).map((lane) => all("rect", lane));
    const labels = all(".closeup-labels li", part);
    const causes = JSON.parse(told.dataset.causes);
    const MOST = 64;
    let zoom = 1;
    let chosen = null;
    const stretch = (factor, around) => {
      const before = zoom;
      zoom = Math.min(Math.max(factor, 1), MOST);
      const middle = around ?? scroll.clientWidth / 2;
      const at = (scroll.scrollLeft + middle) / before;
      picture.style.width = marks.style.width = `${100 * zoom}%`;
      scroll.scrollLeft = at * zoom - middle;
    };
    const micros = (us) => (us >= 1000 ? `${(us / 1000).toFixed(3)} ms` : `${us.toFixed(us >= 100 ? 1 : 2)} \u00b5s`);
    const words = (row, place) => {
      const own = rows[row][place].parentNode.dataset.row;
      const of = own === "gaps" ? found.gaps : found.rows[Number(own)];
      const time = `${micros(of.duration_us[place])}, at ${micros(of.start_us[place])}`;
      if (own === "gaps") return `${labels[row].textContent}: ${causes[of.cause[place]]} (${time})`;
      const name = of.name[place] === null ? told.dataset.joined.replace("#", of.count[place]) : visible(found.names[of.name[place]]);
      return `${labels[row].textContent}: ${name} (${time})`;
    };
    const choose = (row, place, follow) => {
      if (chosen) rows[chosen[0]][chosen[1]].classList.remove("chosen");
      chosen = [row, place];
      const mark = rows[row][place];
      mark.classList.add("chosen");
      told.textContent = words(row, place);
      if (!follow) return;
      const [box, view] = [mark.getBoundingClientRect(), scroll.getBoundingClientRect()];
      if (box.left < view.left || box.right > view.right) {
        scroll.scrollLeft += box.left + box.width / 2 - view.left - view.width / 2;
      }
    };
    const nearest = (row, mark) => {
      const x = mark.x.baseVal.value;
      const after = rows[row].findIndex((other) => other.x.baseVal.value >= x);
      return after < 0 ? rows[row].length - 1 : after;
    };
    const walk = (key) => {
      if (!chosen) return choose(0, 0, true);
      const [row, place] = chosen;
      if (key === "ArrowLeft") return choose(row, Math.max(place - 1, 0), true);
      if (key === "ArrowRight") return choose(row, Math.min(place + 1, rows[row].length - 1), true);
      const other = Math.min(Math.max(row + (key === "ArrowUp" ? -1 : 1), 0), rows.length - 1);
      return choose(other, other === row ? place : nearest(other, rows[row][place]), true);
    };
    picture.addEventListener("pointerover", (event) => {
      const row = rows.findIndex((marks) => marks[0]?.parentNode === event.target.parentNode);
      if (row >= 0) choose(row, rows[row].indexOf(event.target), false);
    });
    scroll.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (/^Arrow/.test(event.key)) walk(event.key);
      else if (event.key === "+" || event.key === "=") stretch(zoom * 2);
      else if (event.key === "-") stretch(zoom / 2);
      else if (event.key === "0") stretch(1);
      else return;
      event.preventDefault();
    });
    scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      stretch(zoom * (event.deltaY < 0 ? 1.25 : 0.8), event.clientX - scroll.getBoundingClientRect().left);
      event.preventDefault();
    }, { passive: false });
    const to = { in: () => zoom * 2, out: () => zoom / 2, whole: () => 1 };
    for (const button of all("[data-zoom]", part)) {
      button.addEventListener("click", () => stretch(to[button.dataset.zoom]()));
    }
  }

  // Unfolding: everything at once, before printing, and what a link leads to.
  const folded = all("main details");
  const toggle = byId("open-all");
  toggle.addEventListener("click", () => {
    const open = toggle.dataset.open !== "yes";
    toggle.dataset.open = open ? "yes" : "no";
    folded.forEach((details) => { details.open = open; });
    [toggle.textContent, toggle.dataset.other] = [toggle.dataset.other, toggle.textContent];
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = folded.filter((details) => !details.open);
    closed.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
  const reveal = () => {
    const target = byId(location.hash.slice(1));
    for (let part = target; part; part = part.parentElement) if (part.matches("details")) part.open = true;
    if (target?.matches(".beyond") && byId("kernels-all")) byId("kernels-all").checked = true;
  };
  addEventListener("hashchange", reveal);
  addEventListener("click", (event) => { if (event.target.closest("a[href^='#']")) setTimeout(reveal); });
  reveal();

  all("[data-scripted]").forEach((control) => { control.hidden = false; });
})();
