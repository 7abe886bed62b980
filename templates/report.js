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
